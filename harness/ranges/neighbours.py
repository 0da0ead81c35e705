"""The status of releases that were not tested, from the nearest tested ones around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from harness.sweep.cell import Status

Point = tuple[Version, ...]
"""Releases of one or several packages, always in the same order."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest tested points that are older or equal in every package, and the newer ones."""

    older: tuple[Point, ...]
    newer: tuple[Point, ...]
    statuses: frozenset[Status]
    """The statuses of all of them."""
    differing: tuple[Point, ...] = ()
    """Of one package: the points next to them, where these have another certain status."""

    @property
    def status(self) -> Status | None:
        """The status of a point between them: theirs, if it is certain and they all agree.

        Where statuses change from release to release, as ``differing`` shows, it is not known: of
        the recorded releases, 7 had another status than both their neighbours there.
        """
        if not self.older or not self.newer or len(self.statuses) != 1 or self.differing:
            return None
        (status,) = self.statuses
        return status if status.certain else None


def neighbours(tested: Mapping[Point, Iterable[Status]], here: Point) -> Neighbours:
    """The neighbours of a point. A point itself is its own neighbour, if it was tested.

    Of one package, a release without a certain status is a neighbour like any other. Of several,
    such points do not count: often two releases cannot even be installed together.
    """
    points = {point: set(statuses) for point, statuses in tested.items()}
    if len(here) > 1:
        certain = {p: {s for s in of if s.certain} for p, of in points.items()}
        points = {point: statuses for point, statuses in certain.items() if statuses}
    older, newer = _nearest(points, here, newer=False), _nearest(points, here, newer=True)
    found = frozenset(s for point in (*older, *newer) for s in _certain_first(points[point]))
    return Neighbours(older, newer, found, tuple(_differing(points, here, found)))


def _differing(
    points: Mapping[Point, set[Status]], here: Point, found: frozenset[Status]
) -> Iterator[Point]:
    """The second points on both sides, of one package, that certainly differ from the first."""
    if len(here) > 1 or here in points or _same_series(points, here):
        return
    before, after = sorted(p for p in points if p < here), sorted(p for p in points if p > here)
    for point in (*before[-2:-1], *after[1:2]):
        if any(status.certain and status not in found for status in points[point]):
            yield point


def _same_series(points: Iterable[Point], here: Point) -> bool:
    """Whether both neighbours of a release are of its own series, 4.57.1 and 4.57.6 of 4.57.3:
    then a difference beyond them does not matter."""
    (version,) = here
    series = [p for p in points if p[0].release[:2] == version.release[:2]]
    return any(p < here for p in series) and any(p > here for p in series)


def _certain_first(statuses: set[Status]) -> set[Status]:
    """The certain statuses of a point that was tested several times, otherwise all."""
    return {status for status in statuses if status.certain} or statuses


def _nearest(points: Iterable[Point], here: Point, *, newer: bool) -> tuple[Point, ...]:
    """The points nearest to ``here`` of those that are newer (or older) in every package."""
    if len(here) == 1:  # the usual case, and a site asks thousands of times
        of_one = [point for point in points if (point >= here if newer else point <= here)]
        return (min(of_one) if newer else max(of_one),) if of_one else ()

    def beyond(one: Point, other: Point) -> bool:
        pairs = zip(one, other, strict=True)
        return all(a >= b if newer else a <= b for a, b in pairs)

    side = [point for point in points if beyond(point, here)]
    return tuple(sorted(p for p in side if not any(q != p and beyond(p, q) for q in side)))
