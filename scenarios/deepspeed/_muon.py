"""Is each update Muon's? ``_muon_steps`` trains and records ``step``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
SPLIT_FACTS = FACTS | {"exact": api.SIZE, "mixed": api.SIZE}
"""And from upstream's update of the mean gradient, and from the one of which each rank makes its
part, of its part of the mean gradient and of its own share elsewhere."""

NEAR = 0.35
"""How far from the orthogonal matrix Muon's update may be: its singular values are 0.68 to 1.2."""


@dataclass(frozen=True)
class Updates:
    """The oracle of scenarios whose updates are not Muon's."""

    symptom: Callable[[api.Record], bool]
    """Whether a step shows the documented symptom."""
    reason: str
    facts: Mapping[str, Any] = field(default_factory=lambda: FACTS)
    fact: str = "muon"
    """The distance that is small in a right step."""
    near: float = NEAR
    insufficient_checks = staticmethod(usual_checks.loss_ends_higher)

    def plan(self, at: api.Position) -> api.Plan:
        """The facts of each step."""
        return {"step": api.Kind(self.facts, api.each(at.params.steps))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """An update is not near the orthogonal matrix that Muon stands for."""
        steps = records.of("step")
        wrong = [step for step in steps if step[self.fact] > self.near]
        if not wrong:
            return None
        first = wrong[0]
        return api.Finding(
            f"{len(wrong)} of {len(steps)} updates are not Muon's; that of step {first['step']} is "
            f"{first[self.fact]:.3g} of its norm away, with singular values of "
            f"{first['smallest']:.3g} to {first['largest']:.3g}\n{self.reason}",
            step=first["step"],
            ranks=records.ranks,
            magnitude=first[self.fact],
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
