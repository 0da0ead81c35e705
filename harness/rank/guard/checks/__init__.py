"""The checks: each judges the posts of all ranks of a step. None asks a device or a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .accumulation import accumulation
from .checkpoints import checkpoints
from .clipping import clipping
from .common_rows import common_rows
from .finite import finite
from .gradients import gradients
from .precision import precision
from .replicas import replicas
from .samples import samples
from .updates import groups, masters, unheld, updates
from .views import Alarm, Memory, View

Judge = Callable[[Sequence[View], Memory], Iterator[Alarm]]

JUDGES: tuple[Judge, ...] = (
    replicas,
    gradients,
    clipping,
    updates,
    unheld,
    groups,
    masters,
    precision,
    finite,
    accumulation,
    samples,
    common_rows,
    checkpoints,
)
"""What judges a step, in this order. Each yields alarms of one of the checks that an option chooses
(``settings.CHECKS``), such as clipping those of ``gradients``."""
