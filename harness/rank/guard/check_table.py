"""The table of checks, by the names that ``--checks`` and alarms have. Nothing here needs torch.

A judge is a module of ``checks`` with a function of its name, or another function of it, and yields
alarms of the posts of all ranks of a step. It asks no device and no rank.
"""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """What an option chooses."""

    name: str
    compares: str
    """What a right training keeps, for docs/guard.md."""
    judges: tuple[str, ...] = ()
    """Without one, each rank sees the fault alone, and posts it."""


CHECKS = (
    Check(
        "replicas",
        "weights that are equal on several ranks at first stay equal, bit by bit",
        ("replicas",),
    ),
    Check(
        "gradients",
        "the optimizer uses the mean of the gradients that the ranks computed. Clipping uses "
        "the norm of all ranks, and comes after unscaling",
        ("gradients", "clipping"),
    ),
    Check(
        "updates",
        "the step follows the formula of SGD, Adam or AdamW. All ranks use the same learning "
        "rate for a parameter that they share",
        ("updates", "updates.unheld", "updates.groups", "updates.masters"),
    ),
    Check(
        "precision",
        "a step at the full rate moves at least half of the weights in bf16 or fp16 that have "
        "a gradient",
        ("precision",),
    ),
    Check(
        "finite",
        "a step makes no weight infinite or nan. The alarm says where that begins",
        ("finite",),
    ),
    Check(
        "accumulation",
        "a step counts the loss of each micro-batch once. With the Trainer, each token counts once",
        ("accumulation",),
    ),
    Check(
        "samples",
        "no two ranks read the same row, no row comes twice in an epoch, and each epoch has "
        "another order. Also after a load",
        ("samples", "samples.common_rows"),
    ),
    Check("schedule", "after a load, the learning rate, the schedule and the count of steps go on"),
    Check("scaler", "a loss scaler does not skip steps for ever"),
    Check(
        "checkpoints",
        "after a load, the weights, their fp32 copies and the state of the optimizer are "
        "those of the save. A split tensor is saved with all parts",
        ("checkpoints",),
    ),
)
"""In the order in which they judge a step: later ones use what earlier ones have found."""

NAMES = tuple(check.name for check in CHECKS)
