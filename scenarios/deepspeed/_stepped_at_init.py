"""Did Adam take one step too many, an empty one, before the first?

A rank records ``step`` with the loss, Adam's ``count``, and how far the weights are, in learning
rates, from those of plain torch: ``strayed``; and from those of plain torch after an empty step:
``strayed_ahead``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import usual_checks


@dataclass(frozen=True)
class Ahead:
    """The oracle of scenarios whose Adam is one step ahead."""

    documented: Callable[[api.Record], bool]
    """Whether a step is that of an Adam that took an empty step. Its docstring is the symptom on
    the bug's page."""
    tolerance: float
    """How far weights may be from plain torch's, in learning rates."""
    weights: str = "weights"
    """What was compared, in words."""
    insufficient_checks = staticmethod(usual_checks.loss_ends_higher)
    picture = staticmethod(
        api.lines(
            "Distance of the weights from plain torch's",
            "with the bug the first steps are too short, and the weights stay behind",
            lambda step: step["strayed"],
            y="learning rates",
        )
    )

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each step: Adam's count, and how far the weights are from plain torch's."""
        facts = {
            "loss": api.NUMBER,
            "reference_loss": api.alike(api.NUMBER),
            "count": api.alike(api.COUNT),
            "strayed": api.alike(api.SIZE),
            "strayed_ahead": api.alike(api.SIZE),
        }
        return {"step": api.Kind(facts, api.each(at.params.steps))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that Adam's count or the weights are not plain torch's."""
        steps = records.of("step")
        wrong_steps = [step for step in steps if not self._is_right(step)]
        if not wrong_steps:
            return None
        fault = wrong_steps[0]
        return api.Finding(
            f"after step {fault['step']} Adam has counted {fault['count']}, and the {self.weights} "
            f"are {fault['strayed']:.3g} learning rates from plain torch's",
            step=fault["step"],
            ranks=records.ranks,
            magnitude=max(step["strayed"] for step in wrong_steps),
            unit="learning rates from plain torch's weights",
            documented=all(map(self.documented, steps)),
        )

    def _is_right(self, step: api.Record) -> bool:
        """Whether the count and the weights are those of plain torch."""
        near = api.near(step["strayed"], 0, within=self.tolerance)
        return near and bool(step["count"] == step["step"])


def ahead(step: api.Record, tolerance: float) -> bool:
    """Whether the count is one ahead, and the weights are those after an empty step."""
    near = api.near(step["strayed_ahead"], 0, within=tolerance)
    return near and bool(step["count"] == step["step"] + 1)
