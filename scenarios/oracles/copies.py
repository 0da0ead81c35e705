"""Are the copies of a tensor that several ranks hold equal, bit by bit, after every step?

A rank writes into its record of a step, under a field of the scenario's choice, the greatest
difference of each tensor whose copies are not: ``{"3.input_layernorm.bias": 0.131}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.facts.shapes import FLAG, NUMBER, SIZE, Facts, by_name, many, maybe, optional
from harness.spec import Exercise, Finding, Record, Records
from scenarios.oracles import stepped

UNIT = "between the copies of a weight"

TIED_STEP: Facts = {
    "loss": NUMBER, "grad_norm": maybe(SIZE), "clipping": SIZE, "drift": by_name(SIZE),
    "own": optional(SIZE), "sum": optional(SIZE), "applied": optional(SIZE),
    "buffered": optional(FLAG), "parted": optional(FLAG), "applied_parted": optional(FLAG),
    "left_parted": optional(maybe(FLAG)), **stepped.FACTS,
    "got_of_own": by_name(many(NUMBER, 3)),
}  # fmt: skip
"""A step of ``scenarios.workloads.tied_pipeline``; a rank without a copy has no gradient of it.

``got_of_own`` has of the tied weight how much of the stage's own gradient its optimizer got, as
``got`` has of the sum over the stages."""


def facts(differences: Iterable[Any]) -> dict[str, float]:
    """What to record of a detector's differences (``harness.detectors.replicas`` or ``tied``)."""
    return {each.name: each.greatest for each in differences}


@dataclass(frozen=True)
class Parting:
    """Copies that part."""

    step: int
    """The first step after which they differ."""
    first: Mapping[str, float]
    """By how much each differs then."""
    last: Mapping[str, float]
    """By how much each differs after the last step at which any does."""
    last_step: int

    @property
    def greatest(self) -> float:
        return max(self.first.values())

    def finding(
        self, lines: Iterable[str], ranks: tuple[int, ...], *, documented: bool, unit: str = UNIT
    ) -> Finding:
        """The finding that tells of it, in these lines."""
        return Finding(
            "\n".join(lines), self.step, tuple(self.first), ranks, self.greatest, unit,
            documented=documented,
        )  # fmt: skip


def parting(records: Records, field: str, rank: int = 0) -> Parting | None:
    """When and how far the copies in a field of the steps part; None where they never do."""
    parted = [step for step in records.of("step", rank) if step[field]]
    if not parted:
        return None
    first, last = parted[0], parted[-1]
    return Parting(first["step"], first[field], last[field], last["step"])


def unsummed(step: Record, name: str) -> bool:
    """Whether a stage applied its own gradient of the tied weight, whole: for ``stepped.astray``.

    The norm is of what was applied, and so another one as well.
    """
    own = step["got_of_own"]
    applied = bool(own) and all(stepped.gave(step, s, stepped.factor(step)) for s in own.values())
    return applied and (name in own or name == stepped.NORM)


def gradients_parted(records: Records) -> Exercise:
    """The ranks' own gradients of the copies, which are to be summed, differed in every step."""
    steps = records.of("step")
    parted = [step for step in steps if step.get("parted")]
    norms = " and ".join(f"{step['own']:.4g}" for step in parted if step["step"] == 1)
    told = "the stages' own gradients of the tied weight differed in"
    return Exercise.of(
        0 < len(parted) == len(steps),
        f"{told} each step (norms {norms} at step 1)",
        f"{told} {len(parted)} of {len(steps)} records of a step",
    )
