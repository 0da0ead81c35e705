"""Shims: declared changes of the environment that let an upstream release run on this machine.

Each shim is a named ``Point`` that says which releases and lanes need it, and why. Each upstream
has a module with its shims. The parent process decides which shims apply and lists them in
run.json; each rank installs these and records how often each was used. No shim touches the path of
a defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from harness.api.spec import Lane, Point
from harness.overlays.shims import deepspeed, hugging_face, megatron

POINTS: tuple[Point, ...] = (
    hugging_face.OFFLINE,
    *hugging_face.POINTS,
    *deepspeed.POINTS,
    *megatron.POINTS,
)


def needed(pins: Mapping[str, str], lane: Lane) -> list[Point]:
    """The shims that these releases need on this lane, in the order to install them."""
    from packaging.specifiers import SpecifierSet

    def applies(point: Point) -> bool:
        if point is hugging_face.OFFLINE:
            return True
        version = pins.get(point.upstream)
        if version is None or lane not in point.lanes:
            return False
        return SpecifierSet(point.releases).contains(version, prereleases=True)

    return [point for point in POINTS if applies(point)]


def install(names: Iterable[str], uses: Counter[str] | None = None) -> Counter[str]:
    """Install the named shims in this process; the counter counts their uses from now on."""
    uses = Counter() if uses is None else uses
    by_name = {point.name: point for point in POINTS}
    for name in names:
        uses[name] = 0
        by_name[name].install(_counter(uses, name))
    return uses


def _counter(uses: Counter[str], name: str):  # type: ignore[no-untyped-def]
    def count() -> None:
        uses[name] += 1

    return count
