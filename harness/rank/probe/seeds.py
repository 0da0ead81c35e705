"""The generators of a script that sets no seed.

Without a probe, each process begins with another seed. Here all ranks are forked from one process
and would draw the same numbers, which hides that each rank splits or shuffles the data by itself.
So every rank gets a seed of its own, and rank 0 the same one in all layouts. A script that sets a
seed replaces it.
"""

from __future__ import annotations

import random

FIRST = 20_260_000
"""The seed of rank 0."""


def install(rank: int) -> None:
    """Seed the generators of Python, numpy and torch's CPU; torch seeds those of GPUs alike."""
    import numpy
    import torch

    random.seed(FIRST + rank)
    numpy.random.seed(FIRST + rank)
    torch.default_generator.manual_seed(FIRST + rank)


def replaced(rank: int) -> bool:
    """Whether the script has seeded torch since."""
    import torch

    return torch.default_generator.initial_seed() != FIRST + rank
