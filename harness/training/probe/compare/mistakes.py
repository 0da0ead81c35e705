"""The mistakes that a ratio to the reference shows, such as a loss that is never divided."""

from __future__ import annotations

from harness.bugs.api.numbers import near

NEAR = 2e-3
"""How far (as a fraction) a ratio may be from a mistake's."""


MISTAKES = {
    "0": ("nothing at all", lambda world, k: 0.0),
    "-1": ("the sign is turned", lambda world, k: -1.0),
    "k": ("never divided by the accumulation steps", lambda world, k: float(k)),
    "1/k": ("divided by the accumulation steps twice", lambda world, k: 1 / k),
    "ranks": ("summed over the ranks, not averaged", lambda world, k: float(world)),
    "1/ranks": ("divided by the number of ranks twice", lambda world, k: 1 / world),
    "ranks*k": (
        "divided neither by the ranks nor by the accumulation steps",
        lambda world, k: float(world * k),
    ),
    "1/(ranks*k)": (
        "divided by both the ranks and the accumulation steps once too often",
        lambda world, k: 1 / (world * k),
    ),
}
"""By the ratio in terms of ranks and micro-batches, what it means, and its value."""


def term(ratio: float, world: int, k: int) -> str:
    """The ratio in terms of ranks and micro-batches, such as ``1/k``; empty if no term fits."""
    values = {name: value(world, k) for name, (_, value) in MISTAKES.items()}
    close = (
        name
        for name, value in values.items()
        if value != 1 and near(ratio, value, within=NEAR * max(abs(value), SMALL))
    )
    return next(close, "")


def meaning(ratio: float, world: int, k: int) -> str:
    """The mistake with this ratio; empty if we know none."""
    mistake = term(ratio, world, k)
    return MISTAKES[mistake][0] if mistake else ""


SMALL = 0.02
"""Below this ratio the tolerance is absolute: 0 has none of its own."""


def in_words(ratio: float, meaning: str, of: str = "") -> str:
    """A ratio in words, with what it is a multiple ``of``, and with its meaning."""
    factor = f"{ratio:.4g}"
    if factor == "1" and ratio != 1:  # how far it is from 1 is what matters
        factor = f"1 {'+' if ratio > 1 else '-'} {abs(ratio - 1):.2g}"
    return f"{factor} times{of}" + (f" ({meaning})" if meaning else "")
