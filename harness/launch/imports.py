"""Imports upstream once per process; a process that forks ranks can do it for all of them."""

from __future__ import annotations

import gc
import importlib
import sys
from collections import Counter
from collections.abc import Iterable

from harness.overlays import shims

_uses: Counter[str] = Counter()
"""How often each shim that this process has installed was used."""


def upstream(points: Iterable[str], modules: Iterable[str]) -> Counter[str]:
    """Install these shims and import these modules. The counter counts the uses of each shim.

    Does nothing for those that the process, or the one that it was forked from, has already.
    """
    missing = [module for module in modules if module not in sys.modules]
    shims.install([point for point in points if point not in _uses], _uses)
    for module in missing:
        importlib.import_module(module)
    if missing:
        freeze()
    return _uses


def freeze() -> None:
    """Exclude everything imported so far from garbage collection: none of it is ever freed.

    DeepSpeed collects four times while it initialises, each time through every module. A forked
    process also need not copy memory that the collector does not visit.
    """
    gc.collect()
    gc.freeze()
