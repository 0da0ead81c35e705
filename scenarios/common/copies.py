"""Are the copies of a tensor that several ranks hold equal, bit by bit, after every step?

A rank writes into its record of a step, under a field of the scenario's choice, the greatest
difference of each tensor whose copies are not: ``{"3.input_layernorm.bias": 0.131}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.facts.numbers import near
from harness.facts.shapes import (
    FLAG,
    NUMBER,
    SIZE,
    Facts,
    alike,
    exactly,
    held,
    many,
    maybe,
    optional,
)
from harness.pictures import Lines, Picture, by_step
from harness.spec import Exercise, Finding, Position, Record, Records, Trials
from scenarios.common import stepped

UNIT = "between the copies of a weight"

WEIGHT = "tied_modules.embed.word_embeddings.weight"
"""The name of ``scenarios.common.tied_pipeline``'s tied weight, on each stage with a copy."""

TIED, BLOCKS = "tied_modules.", ["1", "2", "3"]
"""How the names of that pipeline's parameters begin: of the tied module, and of the blocks."""

_COPY = "tied_modules.embed.tied_weight"  # as the detector names it
DRIFT = held({_COPY: optional(SIZE)})
"""How far the copies are apart, where they are."""
DRIFTS = held({_COPY: optional(SIZE), f"{_COPY} (fp32)": optional(SIZE)})
"""How far they and their fp32 masters are."""


def _tied(stages: int) -> Facts:
    """What a rank tells of its copy of the tied weight; alone, it has nothing to part from."""
    flag = FLAG if stages > 1 else exactly(False)
    return {
        "own": SIZE,
        "sum": alike(SIZE),
        "applied": SIZE,
        "buffered": alike(FLAG),
        "parted": alike(flag),
        "applied_parted": alike(flag),
        "left_parted": alike(maybe(flag)),
        "drift": alike(DRIFT),
        "got_of_own": held({WEIGHT: many(NUMBER, 3)}),
    }


NOT_TIED: Facts = {"drift": exactly({}), "got_of_own": exactly({})}
"""What a rank without a copy tells of it."""


def tied_step(at: Position, clipping: float = 0.0, bf16: bool = True) -> Facts:
    """A step of ``scenarios.common.tied_pipeline``; a rank without a copy has no gradient of it.

    ``got_of_own`` has of the tied weight how much of the stage's own gradient its optimizer got, as
    ``got`` has of the sum over the stages.
    """
    tied = _tied(at.world_size) if at.rank in (0, at.world_size - 1) else NOT_TIED
    norm = SIZE if bf16 else maybe(SIZE)  # in fp32 DeepSpeed may tell of none
    told = {"loss": NUMBER, "grad_norm": norm, "clipping": exactly(clipping)}
    return {**told, **tied, **stepped.FACTS}


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
            "\n".join(lines),
            self.step,
            tuple(self.first),
            ranks,
            self.greatest,
            unit,
            documented=documented,
        )


def parting(records: Records, field: str, rank: int = 0) -> Parting | None:
    """When and how far the copies in a field of the steps part; None where they never do."""
    parted = [step for step in records.of("step", rank) if step[field]]
    if not parted:
        return None
    first, last = parted[0], parted[-1]
    return Parting(first["step"], first[field], last[field], last["step"])


def drifting(trials: Trials, field: str) -> Iterator[Picture]:
    """A picture of how far the copies in a field of the steps are apart: the farthest of each."""

    def farthest(step: Record) -> float | None:
        apart = step.get(field)
        return max(apart.values(), default=0.0) if isinstance(apart, Mapping) else apart

    yield Lines(
        "The greatest difference between the copies of a weight",
        "with the bug the copies differ from the first step on; without it they never do",
        by_step(trials, farthest),
        y="difference of a weight",
        log=True,
    )


def astray(
    records: Records, excused: stepped.Excuse = lambda step, name: False
) -> list[stepped.Astray]:
    """What ``stepped.astray`` finds, and what is told twice of the tied weight, and not alike."""
    first = [step for step in records.of("step", 0) if "own" in step]
    retold = [
        stepped.Astray(rank, step["step"], WEIGHT, about)
        for rank in records.ranks
        for step, other in zip(
            (each for each in records.of("step", rank) if "own" in each), first, strict=False
        )
        for about in (*_norms_retold(step), *_parted_retold(step, other))
    ]
    told = [*_misplaced(records), *stepped.miscounted(records, _counted)]
    return told + stepped.astray(records, excused) + retold


def _counted(step: Record, name: str) -> bool:
    """Whether a stage's parameter is in the gradient norm: no later stage's tied module is."""
    return not step["rank"] or not name.startswith(TIED)


def _misplaced(records: Records) -> Iterator[stepped.Astray]:
    """Where the stages, one after another, do not hold the model's blocks in their order: a stage
    tells of another one's parameters."""
    first = [records.of("step", rank)[0] for rank in records.ranks]
    held_by = [{n.partition(".")[0] for n in s["got"] if not n.startswith(TIED)} for s in first]
    blocks = [block for own in held_by for block in sorted(own)]
    if blocks != BLOCKS:
        yield stepped.Astray(0, 1, "the model", f"has blocks {', '.join(blocks)} on its stages")


def _norms_retold(step: Record) -> Iterator[str]:
    """The norms of a step's gradients that are not those of ``got`` and ``got_of_own``."""
    norm, ratio, aside = step["got"][WEIGHT]
    right = {
        "own": step["got_of_own"][WEIGHT][0],
        "sum": norm,
        "applied": math.hypot(ratio * norm, aside),
    }
    for name, other in right.items():
        least = stepped.FLOOR * step["gradient"]
        if not near(step[name], other, within=stepped.TOLERANCE * max(other, least)):
            yield f"has a gradient, {name}, of norm {step[name]:.4g}, told as {other:.4g} as well"


def _parted_retold(step: Record, first: Record) -> Iterator[str]:
    """What is told to be equal on all stages, and has another norm than on the first one; and
    whether a gradient is left beside a buffer."""
    for name, flag in (("own", "parted"), ("applied", "applied_parted")):
        if step[name] != first[name] and not step[flag]:
            yield f"has a gradient, {name}, of another norm than on the first stage, and no {flag}"
    if step["buffered"] is (step["left_parted"] is None):
        yield f"has buffered {step['buffered']}, and left_parted {step['left_parted']}"


def misnamed(records: Records, field: str, among: str) -> Iterator[stepped.Astray]:
    """The names in a field of the steps that are not ``among`` the copies; and of these, which each
    step names, those that not all steps have, or that are no parameters."""
    for step in records.of("step"):
        names = set(records.of("step", step["rank"])[0][among])
        told = set(step[field]) - names | names - set(step["got"])
        for name in sorted(told | names ^ set(step[among])):
            yield stepped.Astray(step["rank"], step["step"], name, "is no copy in each step")


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
