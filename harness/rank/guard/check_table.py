"""The table of checks, by the names that ``--checks`` and alarms have. Nothing here needs torch.

A judge is a module of ``checks`` with a function of its name, which yields alarms of the posts of
all ranks of a step. It asks no device and no rank.
"""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """What an option chooses."""

    name: str
    judges: tuple[str, ...] = ()
    """Without one, each rank sees the fault alone, and posts it."""


CHECKS = (
    Check("replicas", ("replicas",)),
    Check("gradients", ("gradients", "clipping")),
    Check("updates", ("updates", "unheld", "groups", "masters")),
    Check("precision", ("precision",)),
    Check("finite", ("finite",)),
    Check("accumulation", ("accumulation",)),
    Check("samples", ("samples", "common_rows")),
    Check("schedule"),
    Check("scaler"),
    Check("checkpoints", ("checkpoints",)),
)
"""In the order in which they judge a step: later ones use what earlier ones have found."""

NAMES = tuple(check.name for check in CHECKS)
