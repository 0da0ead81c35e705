"""A relation that does not hold, and the words of its message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.bugs.api.numbers import finite, near
from harness.detectors.arithmetic import Projection
from harness.training.probe.compare.mistakes import NEAR, in_words, meaning
from harness.training.probe.compare.reference import Moment

SHOWN = 3
"""Names that a message lists."""


@dataclass(frozen=True)
class Broken:
    """A relation that does not hold at a step."""

    relation: str
    text: str
    ratio: float | None = None
    """How much of the reference there is, where that is one number."""
    meaning: str = ""
    """What the ratio says."""
    parameters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    details: tuple[str, ...] = field(default=())


def described(moment: Moment, part: Projection) -> str:
    if part.is_factor:
        return ratio_text(moment, part.ratio)
    if not finite(part.ratio):
        return "not finite, unlike"
    return f"{part.ratio:.4g} times (and {part.aside:.0%} of it in another direction)"


def meaning_of(moment: Moment, part: Projection) -> str:
    return meaning_at(moment, part.ratio) if part.is_factor else ""


def meaning_at(moment: Moment, ratio: float) -> str:
    """What a ratio says. Where fewer micro-batches are left for a step, as at the end of an epoch,
    it may be divided by the number that others have."""
    count, k = moment.fewer_micro_batches, moment.layout.k
    if count and near(ratio, count / k, share=NEAR):
        return f"{count} of {k} micro-batches, divided by {k}"
    return meaning(ratio, moment.layout.rank_factor, k)


def ratio_text(moment: Moment, ratio: float) -> str:
    return in_words(ratio, meaning_at(moment, ratio))


def several(names: Iterable[str]) -> str:
    names = list(names)
    remainder = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + remainder


def several_ranks(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
