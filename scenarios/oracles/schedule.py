"""Is the learning rate of each step what the schedule's formula says?

A rank records ``rate`` with the rates that a step of the optimizer used, one a parameter group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.facts.numbers import near
from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import SIZE, many
from harness.spec import Finding, Records

TOLERANCE = 1e-6
"""How far (as a fraction of the greatest rate that the formula gives) a rate may be from it."""

UNIT = "from the rate of the schedule"


def plan(steps: int) -> Plan:
    """The rates of so many steps of an optimizer."""
    return {"rate": Kind({"rates": many(SIZE)}, each(steps))}


@dataclass(frozen=True)
class Deviation:
    """A step whose rate is not the formula's."""

    rank: int
    step: int
    group: int
    rate: float
    wanted: float

    def __str__(self) -> str:
        group = f" of group {self.group}" if self.group else ""
        return (
            f"step {self.step}: the rate{group} is {self.rate:.4g}, where the schedule says "
            f"{self.wanted:.4g}"
        )


def deviations(records: Records, formula: Callable[[int], float]) -> list[Deviation]:
    """The steps, counted from 1, whose rate is not ``formula(step)``, by rank and step."""
    steps = records.of("rate")
    allowed = TOLERANCE * max((formula(step["step"]) for step in steps), default=0.0)
    return [
        Deviation(step["rank"], step["step"], group, rate, formula(step["step"]))
        for step in steps
        for group, rate in enumerate(step["rates"])
        if not near(rate, formula(step["step"]), within=allowed)
    ]


def finding(wrong: Sequence[Deviation], *, documented: bool) -> Finding:
    """The finding of these steps."""
    return Finding(
        message="\n".join(dict.fromkeys(map(str, wrong))),
        step=min(each.step for each in wrong),
        ranks=tuple(sorted({each.rank for each in wrong})),
        magnitude=max(abs(each.rate - each.wanted) for each in wrong),
        unit=UNIT,
        documented=documented,
    )
