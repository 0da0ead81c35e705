"""The generators of a script that sets no seed.

Without a probe, each process begins with a different seed. Here all ranks are forked from one
process and would draw the same numbers, which would hide that each rank splits or shuffles the data
by itself. So every rank gets its own seed, and rank 0 the same seed in all layouts. A script that
sets a seed replaces it.
"""

from __future__ import annotations

import random

FIRST = 20_260_000
"""The seed of rank 0."""


def install(rank: int) -> None:
    """Seed Python, numpy and torch on the CPU; torch seeds all GPUs alike."""
    import numpy
    import torch

    random.seed(FIRST + rank)
    numpy.random.seed(FIRST + rank)
    torch.default_generator.manual_seed(FIRST + rank)


def replaced(rank: int) -> bool:
    """Whether the script has seeded torch since."""
    import torch

    return torch.default_generator.initial_seed() != FIRST + rank
