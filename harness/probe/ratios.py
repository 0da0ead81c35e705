"""What a ratio to the reference means, where it is one of those that mistakes have."""

from __future__ import annotations

from harness.facts.numbers import near

NEAR = 2e-3
"""How far (as a fraction) a ratio may be from that of a mistake."""


def meaning(ratio: float, world: int, k: int) -> str:
    """The mistake with this ratio; empty if there is none that we know."""
    meanings = {
        "nothing at all": 0.0,
        "the sign is turned": -1.0,
        "never divided by the accumulation steps": k,
        "divided by the accumulation steps twice": 1 / k,
        "summed over the ranks, not averaged": world,
        "divided by the number of ranks twice": 1 / world,
        "divided neither by the ranks nor by the accumulation steps": world * k,
        "divided by both the ranks and the accumulation steps once too often": 1 / (world * k),
    }
    close = (
        words
        for words, value in meanings.items()
        if value != 1 and near(ratio, value, within=NEAR * max(abs(value), SMALL))
    )
    return next(close, "")


SMALL = 0.02
"""Below this ratio the tolerance is absolute: 0 has none of its own."""


def times(ratio: float, world: int, k: int) -> str:
    """A ratio in words, with its meaning."""
    words = meaning(ratio, world, k)
    return f"{ratio:.4g} times" + (f" ({words})" if words else "")
