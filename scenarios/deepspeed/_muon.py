"""Is each update Muon's? ``_muon_steps`` trains and records ``step``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import usual_checks

FACTS = {
    "loss": api.SIZE,
    "largest": api.SIZE,
    "smallest": api.SIZE,
    "muon": api.SIZE,
    "sgd": api.SIZE,
    "each": api.SIZE,
}
"""The largest and smallest singular value of an update, divided by the rate; and how far it is, in
parts of its norm, from Muon's, from the mean gradient, and from the sum of the updates that Muon
makes of each micro-batch."""

NEAR = 0.35
"""How far from the orthogonal matrix Muon's update may be: its singular values are 0.68 to 1.2."""


def plan(at: api.Position) -> api.Plan:
    """The facts of each step."""
    return {"step": api.Kind(FACTS, api.each(at.params.steps))}


@dataclass(frozen=True)
class Updates:
    """The oracle of scenarios whose updates are not Muon's."""

    symptom: Callable[[api.Record], bool]
    """Whether a step shows the documented symptom."""
    reason: str
    plan = staticmethod(plan)
    insufficient_checks = staticmethod(usual_checks.loss_ends_higher)

    def detect(self, records: api.Records) -> api.Finding | None:
        """An update is not near the orthogonal matrix that Muon stands for."""
        steps = records.of("step")
        wrong = [step for step in steps if step["muon"] > NEAR]
        if not wrong:
            return None
        first = wrong[0]
        return api.Finding(
            f"{len(wrong)} of {len(steps)} updates are not Muon's; that of step {first['step']} is "
            f"{first['muon']:.3g} of its norm away, with singular values of "
            f"{first['smallest']:.3g} to {first['largest']:.3g}\n{self.reason}",
            step=first["step"],
            ranks=records.ranks,
            magnitude=first["muon"],
            unit="of the right update",
            documented=len(wrong) == len(steps) and all(map(self.symptom, steps)),
        )

    @staticmethod
    def picture(trials: api.Trials) -> Iterator[api.Picture]:
        """The singular values of the updates."""
        bars = [
            (variant, f"step {step['step']}, {name}", float(step[name]))
            for variant, records in trials.items()
            for step in records.of("step")
            for name in ("smallest", "largest")
        ]
        yield api.Bars(
            "The singular values of an update, divided by the rate",
            "without the bug all are near 1",
            bars,
            "times the rate",
        )
