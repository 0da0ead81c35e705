"""Shims: declared changes of the environment that let an upstream release run on this machine.

Each shim is a named ``Point`` that says which releases and lanes need it, and why. An
upstream with many shims has its own module; all other shims are in ``others``. The parent process
decides which shims apply and lists them in run.json; each rank installs these and records how often
each was used. No shim touches the path of a defect.

A process imports upstream with its shims, and only once. A process that forks ranks does so for all
ranks.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata

from harness.bugs.api.spec import Lane, Point
from harness.rank.shims import deepspeed, megatron, others

POINTS: tuple[Point, ...] = (others.OFFLINE, *others.POINTS, *deepspeed.POINTS, *megatron.POINTS)

SHIMMED = {
    "composer": "mosaicml",
    "deepspeed": "deepspeed",
    "lightly": "lightly",
    "megatron": "megatron-core",
    "mmengine": "mmengine",
    "open_clip": "open-clip-torch",
    "torchtitan": "torchtitan",
}
"""Maps a word in a user's script to the package whose shims it needs; others serve scenarios."""


def needed(pins: Mapping[str, str], lane: Lane) -> list[Point]:
    """The shims that these releases need on this lane, in the order to install them."""

    def applies(point: Point) -> bool:
        if point is others.OFFLINE:
            return True
        version = pins.get(point.upstream)
        if version is None or lane not in point.lanes:
            return False
        # Not before: a user's interpreter may lack it if it has none of these packages.
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(point.releases).contains(version, prereleases=True)

    return [point for point in POINTS if applies(point)]


def install(names: Iterable[str], uses: Counter[str] | None = None) -> Counter[str]:
    """Install the named shims in this process; the counter counts their uses from now on."""
    uses = Counter() if uses is None else uses
    by_name = {point.name: point for point in POINTS}
    for name in names:
        uses[name] = 0
        by_name[name].install(partial(uses.update, [name]))
    return uses


uses: Counter[str] = Counter()
"""How often each shim that this process has installed was used."""


def install_for(packages: Iterable[str], lane: str) -> None:
    """Install the shims that the installed releases of these packages need."""
    releases = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            releases[name] = metadata.version(name)
    points = needed(releases, Lane(lane))
    import_upstream([p.name for p in points if p.upstream in releases], ())


def import_upstream(points: Iterable[str], modules: Iterable[str]) -> Counter[str]:
    """Install these shims and import these modules. The counter counts the uses of each shim.

    Skips those that the process, or the process from which it was forked, already has.
    """
    missing = [module for module in modules if module not in sys.modules]
    install([point for point in points if point not in uses], uses)
    for module in missing:
        importlib.import_module(module)
    if missing:
        freeze()
    return uses


def freeze() -> None:
    """Exclude everything imported so far from garbage collection: none of it is ever freed.

    DeepSpeed collects four times while it initialises, each time through every module. A forked
    process also need not copy memory that the collector does not visit.
    """
    gc.freeze()
