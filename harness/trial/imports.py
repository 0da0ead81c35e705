"""Imports upstream once per process; a process that forks ranks can do it for all of them."""

from __future__ import annotations

import gc
import importlib
from collections import Counter
from functools import cache

from harness.upstream import shims


@cache
def upstream(points: tuple[str, ...], modules: tuple[str, ...]) -> Counter[str]:
    """Install these shims and import these modules. The counter counts the uses of each shim.

    Does nothing in a process that was forked after the same call.
    """
    uses = shims.install(points)
    for module in modules:
        importlib.import_module(module)
    freeze()
    return uses


def freeze() -> None:
    """Exclude everything imported so far from garbage collection: none of it is ever freed.

    DeepSpeed collects four times while it initialises, each time through every module. A forked
    process also need not copy memory that the collector does not visit.
    """
    gc.collect()
    gc.freeze()
