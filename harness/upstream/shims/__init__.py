"""Shims: declared changes of the environment that let an upstream release run on this machine.

One module an upstream, each shim a named ``Point`` that says for which releases and lanes it is
needed and why. The parent decides which apply and lists them in run.json; each rank installs
those and records how often each was used. None of them touches the path of a defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from harness.spec import Lane, Point
from harness.upstream.shims import deepspeed, hugging_face, megatron

POINTS: tuple[Point, ...] = (*hugging_face.POINTS, *deepspeed.POINTS, *megatron.POINTS)


def needed(pins: Mapping[str, str], lane: Lane) -> list[Point]:
    """The shims that these releases need on this lane, in the order to install them."""
    from packaging.specifiers import SpecifierSet

    def applies(point: Point) -> bool:
        version = pins.get(point.upstream)
        if version is None or lane not in point.lanes:
            return False
        return SpecifierSet(point.releases).contains(version, prereleases=True)

    return [point for point in POINTS if applies(point)]


def install(names: Iterable[str]) -> Counter[str]:
    """Install the named shims in this process; the counter goes on counting their uses."""
    uses: Counter[str] = Counter()
    by_name = {point.name: point for point in POINTS}
    for name in names:
        uses[name] = 0
        by_name[name].install(_counter(uses, name))
    return uses


def _counter(uses: Counter[str], name: str):  # type: ignore[no-untyped-def]
    def count() -> None:
        uses[name] += 1

    return count
