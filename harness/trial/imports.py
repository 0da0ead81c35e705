"""Upstream's import, once a process: also by one that is forked for ranks later."""

from __future__ import annotations

import gc
import importlib
from collections import Counter
from functools import cache

from harness.upstream import shims


@cache
def upstream(points: tuple[str, ...], modules: tuple[str, ...]) -> Counter[str]:
    """Install these shims and import these modules; the counter goes on counting the shims' uses.

    Where a process above has done so before it was forked, nothing is left to do.
    """
    uses = shims.install(points)
    for module in modules:
        importlib.import_module(module)
    set_aside()
    return uses


def set_aside() -> None:
    """Have garbage collection leave alone what was imported: none of it ever dies.

    DeepSpeed collects four times while it initialises, each time through every module; and a forked
    process need not copy the memory that nobody looks at.
    """
    gc.collect()
    gc.freeze()
