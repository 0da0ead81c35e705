"""A relation that does not hold, and the words of its message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.bugs.api.numbers import finite
from harness.detectors.arithmetic import Projection
from harness.training.probe.compare.mistakes import in_words, meaning
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
    layout = moment.layout
    return meaning(part.ratio, layout.rank_factor, layout.k) if part.is_factor else ""


def ratio_text(moment: Moment, ratio: float) -> str:
    return in_words(ratio, moment.layout.rank_factor, moment.layout.k)


def several(names: Iterable[str]) -> str:
    names = list(names)
    remainder = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + remainder


def several_ranks(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
