"""By what is a loss divided? For several micro-batches, several divisors are plausible.

A rank records the mean loss and the number of tokens of each micro-batch, computed by plain torch,
and the loss that the library reports. ``explains`` names each divisor that gives the reported loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from harness.bugs import api

Losses = Sequence[float]

TOKENS = "the mean over all tokens"
SUM = "the sum of the micro-batches' means"
MEANS = "the mean of the micro-batches' means"

NORMALISERS: Mapping[str, Callable[[Losses, Sequence[int]], float]] = {
    TOKENS: lambda means, tokens: (
        math.fsum(m * t for m, t in zip(means, tokens, strict=True)) / sum(tokens)
    ),
    MEANS: lambda means, _: math.fsum(means) / len(means),
    SUM: lambda means, _: math.fsum(means),
    "the mean, divided once more": lambda means, _: math.fsum(means) / len(means) ** 2,
    "the last micro-batch's mean": lambda means, _: means[-1],
}


def explains(
    loss: float, means: Losses, tokens: Sequence[int], tolerance: float = 1e-4
) -> list[str]:
    """The names of the normalisers that give this loss, within a fraction; none gives NaN."""
    values = {name: of(means, tokens) for name, of in NORMALISERS.items()}
    return [n for n, value in values.items() if api.near(loss, value, share=tolerance)]
