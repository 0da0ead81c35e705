"""Are the copies of a tensor on several ranks equal, bit by bit, after every step?

In its record of a step, a rank writes the greatest difference of each tensor whose copies are not
equal: ``{"3.input_layernorm.bias": 0.131}``. The scenario chooses the name of that fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import stepped

UNIT = "between the copies of a weight"

WEIGHT = "tied_modules.embed.word_embeddings.weight"
"""The name of the tied weight in ``scenarios.common.tied_pipeline``, on each stage with a copy."""

_COPY = "tied_modules.embed.tied_weight"  # the detector's name for it
DRIFT = api.held({_COPY: api.optional(api.SIZE)})
"""The greatest difference between the copies; empty if they are equal."""
DRIFTS = api.held({_COPY: api.optional(api.SIZE), f"{_COPY} (fp32)": api.optional(api.SIZE)})
"""The greatest differences between the copies and between their fp32 masters."""


def _tied(stages: int) -> api.Facts:
    """What a rank records of its copy of the tied weight. A single stage has no other copy."""
    flag = api.FLAG if stages > 1 else api.exactly(False)
    return {
        "own": api.SIZE,
        "sum": api.alike(api.SIZE),
        "applied": api.SIZE,
        "buffered": api.alike(api.FLAG),
        "parted": api.alike(flag),
        "applied_parted": api.alike(flag),
        "left_parted": api.alike(api.maybe(flag)),
        "drift": api.alike(DRIFT),
        "got_of_own": api.held({WEIGHT: api.many(api.NUMBER, 3)}),
    }


NOT_TIED: api.Facts = {"drift": api.exactly({}), "got_of_own": api.exactly({})}
"""What a rank without a copy records of it."""


def tied_step(at: api.Position, bf16: bool = True) -> api.Facts:
    """A step of ``scenarios.common.tied_pipeline``; a rank without a copy has no gradient of it.

    ``got`` compares what the optimizer got with the gradient summed over the stages; for the tied
    weight, ``got_of_own`` compares it with the stage's own gradient.
    """
    tied = _tied(at.world_size) if at.rank in (0, at.world_size - 1) else NOT_TIED
    norm = api.SIZE if bf16 else api.maybe(api.SIZE)  # some releases report no norm in fp32
    return {"loss": api.NUMBER, "grad_norm": norm, **tied, **stepped.FACTS}


def facts(differences: Iterable[Any]) -> dict[str, float]:
    """What to record of the differences that ``harness.detectors.replicas`` or ``tied`` found."""
    return {difference.name: difference.greatest for difference in differences}


@dataclass(frozen=True)
class Parting:
    """When copies first differ, and by how much."""

    step: int
    """The first step after which they differ."""
    differences: Mapping[str, float]
    """The difference of each copy after that step."""
    last_differences: Mapping[str, float]
    """The difference of each copy after ``last_step``, the last step at which any differs."""
    last_step: int

    @property
    def greatest(self) -> float:
        return max(self.differences.values())

    def finding(
        self, lines: Iterable[str], ranks: tuple[int, ...], *, documented: bool, unit: str = UNIT
    ) -> api.Finding:
        """The finding with these lines as its message."""
        return api.Finding(
            "\n".join(lines),
            self.step,
            tuple(self.differences),
            ranks,
            self.greatest,
            unit,
            documented=documented,
        )


def parting(records: api.Records, field: str, rank: int = 0) -> Parting | None:
    """When the copies first differ, by the fact ``field`` of the steps; None if they never do."""
    parted = [step for step in records.of("step", rank) if step[field]]
    if not parted:
        return None
    start, end = parted[0], parted[-1]
    return Parting(start["step"], start[field], end[field], end["step"])


def drifting(trials: api.Trials, field: str) -> Iterator[api.Picture]:
    """A picture of the greatest difference in the fact ``field`` of each step."""

    def farthest(step: api.Record) -> float | None:
        apart = step.get(field)
        return max(apart.values(), default=0.0) if isinstance(apart, Mapping) else apart

    yield api.Lines(
        "The greatest difference between the copies of a weight",
        "with the bug the copies differ from the first step on; without it they never do",
        api.by_step(trials, farthest),
        y="difference of a weight",
        log=True,
    )


def unsummed(step: api.Record, name: str, clipping: float = 0.0) -> bool:
    """Whether a stage applied all of its own gradient of the tied weight, and not the sum: an
    excuse for ``stepped.astray``, which also excuses the norm of what was applied."""
    shares, factor = step["got_of_own"], stepped.factor(step, clipping)
    applied = bool(shares) and all(stepped.gave(step, share, factor) for share in shares.values())
    return applied and (name in shares or name == stepped.NORM)


def gradients_parted(records: api.Records) -> api.Exercise:
    """In each step, the ranks' own gradients of the copies, which must be summed, differed."""
    steps = records.of("step")
    parted = [step for step in steps if step.get("parted")]
    norms = " and ".join(f"{step['own']:.4g}" for step in parted if step["step"] == 1)
    subject = "the stages' own gradients of the tied weight differed in"
    return api.Exercise.of(
        0 < len(parted) == len(steps),
        f"{subject} each step (norms {norms} at step 1)",
        f"{subject} {len(parted)} of {len(steps)} records of a step",
    )


def norm_differs(records: api.Records) -> dict[str, bool]:
    """The norm is all-reduced, so it agrees between ranks even if the gradients do not."""
    norms: dict[int, set[float]] = {}
    for step in records.of("step"):
        norms.setdefault(step["step"], set()).add(step["grad_norm"])
    return {
        "the global gradient norm differs between ranks": any(len(n) > 1 for n in norms.values())
    }
