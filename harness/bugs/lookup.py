"""The status of releases for a bug, from recorded runs; nothing is run.

Releases that were not tested get the status of the nearest tested ones around them, if these agree.
How often that is wrong is counted: each recorded status is inferred from all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from harness.bugs import affected, catalog
from harness.bugs.api.spec import Scenario
from harness.bugs.cell import Cell, Status
from harness.system.text import listed, short

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


RIGHT, UNKNOWN, WRONG = "right", "unknown", "wrong"


def judged(name: str) -> Iterator[tuple[Point, str]]:
    """Each recorded point of a bug with a certain status, and what is inferred without it.

    All cells of the point are left out, also those with other releases of packages that do not
    decide.
    """
    packages = catalog.scenario(name).deciding
    tested: dict[Point, set[Status]] = {}
    for cell in affected.of(name) if packages else ():
        point = tuple(Version(cell.pins[package]) for package in packages)
        tested.setdefault(point, set()).add(cell.status)
    for point, statuses in tested.items():
        certain = {status for status in statuses if status.certain}
        if len(certain) == 1:
            others = {other: of for other, of in tested.items() if other != point}
            found = neighbours(others, point).status
            yield point, UNKNOWN if found is None else RIGHT if found in certain else WRONG


def judged_counts(name: str) -> Counter[str]:
    """How many of a bug's recorded results are inferred right, wrong or not at all."""
    return Counter(how for _, how in judged(name))


@dataclass(frozen=True)
class Lookup:
    """A status from recorded runs."""

    status: Status | None
    """``affected`` or ``not affected``; None if it is not known."""
    why: str
    tested: bool = False
    """Whether exactly these releases were run; otherwise their neighbours were."""
    nearest: Status | None = None
    """Of releases beyond the tested ones: the status of the newest or oldest of those."""


def lookup(name: str, have: Mapping[str, str]) -> Lookup:
    """The status of releases for a scenario: their own, otherwise that of their neighbours.

    ``have`` are releases by package. Several packages that decide are looked up together, see
    ``neighbours``; packages that do not decide are ignored.
    """
    scenario = catalog.scenario(name)
    packages = [package for package in scenario.deciding if package in have]
    try:
        here = tuple(Version(have[package]) for package in packages)
    except InvalidVersion as error:
        return Lookup(None, str(error))
    cells: dict[Point, list[Cell]] = {}
    for cell in affected.of(name):
        cells.setdefault(tuple(Version(cell.pins[p]) for p in packages), []).append(cell)
    if not packages or not cells:
        return Lookup(None, "no results are recorded; check --run can tell")
    own = _own(_named(packages, here), cells[here]) if here in cells else None
    if own and own.status:
        return own
    if why := _absent(scenario, dict(zip(packages, here, strict=True))):
        return Lookup(Status.NOT_AFFECTED, why)
    if own:
        return own
    tested = {point: {cell.status for cell in of} for point, of in cells.items()}
    return _between(packages, here, tested)


def _absent(scenario: Scenario, here: Mapping[str, Version]) -> str:
    """Why these releases cannot have the bug, by upstream's own history; empty if it may be."""
    for each in scenario.absent:
        wanted = Requirement(each.releases)
        if wanted.name in here and wanted.specifier.contains(here[wanted.name], prereleases=True):
            link = f" ({each.link})" if each.link else ""
            return f"{wanted.name} {here[wanted.name]} cannot have it: {each.why}{link}"
    return ""


def infer(tested: Iterable[tuple[str, Status]], version: str) -> Lookup:
    """The status of a release of one package: that of both neighbours if they agree. ``tested`` has
    versions with their statuses."""
    points: dict[Point, set[Status]] = {}
    for each, status in tested:
        points.setdefault((Version(each),), set()).add(status)
    found = neighbours(points, (Version(version),))
    if found.status is None:
        return Lookup(None, "")
    ((older,),), ((newer,),) = found.older, found.newer
    return Lookup(found.status, f"as {older} and {newer} are; not tested itself")


def why_affected(name: str, have: Mapping[str, str]) -> str:
    """What says that these releases have the bug; empty if they do not, or if it is not known."""
    found = lookup(name, have)
    return found.why if found.status is Status.AFFECTED else ""


def _own(named: str, cells: Sequence[Cell]) -> Lookup:
    """The result of exactly these releases."""
    statuses = {cell.status for cell in cells if cell.status.certain}
    if len(statuses) == 1:
        (status,) = statuses
        day = max(cell.last_seen for cell in cells)
        return Lookup(status, f"{named} was tested on {day}: {_has(status)} the bug", tested=True)
    if statuses:
        return Lookup(None, f"{named} was tested with different results")
    return Lookup(None, f"{named} was tested, without a certain result: {short(cells[0].reason)}")


def _between(
    packages: Sequence[str], here: Point, tested: Mapping[Point, Iterable[Status]]
) -> Lookup:
    """The result of the nearest tested releases on both sides, if they agree."""
    found, named = neighbours(tested, here), _named(packages, here)
    if not found.older or not found.newer:
        return _outside(packages, here, tested)
    if found.differing and len(found.statuses) == 1:
        points = [*_around(found), *found.differing]
        words = listed([f"{_named(packages, p)} ({_or(tested[p])})" for p in points])
        return Lookup(None, f"{named} was not tested, and releases around it differ: {words}")
    if found.status is None:
        around = listed([f"{_named(packages, p)} ({_or(tested[p])})" for p in _around(found)])
        return Lookup(None, f"{named} was not tested, and its neighbours differ: {around}")
    around = listed([_named(packages, point) for point in _around(found)])
    has = f"all {_have(found.status)}" if len(_around(found)) > 2 else f"both {_have(found.status)}"
    return Lookup(found.status, f"{named} was not tested, but {around} {has} the bug")


def _has(status: Status) -> str:
    return "it has" if status is Status.AFFECTED else "it does not have"


def _have(status: Status) -> str:
    return "have" if status is Status.AFFECTED else "do not have"


def _around(found: Neighbours) -> list[Point]:
    return list(dict.fromkeys((*found.older, *found.newer)))


def _outside(
    packages: Sequence[str], here: Point, tested: Mapping[Point, Iterable[Status]]
) -> Lookup:
    """Why releases that are not between tested ones are unknown."""
    for at, package in enumerate(packages):
        ordered = sorted(tested, key=itemgetter(at))
        for point, word in ((ordered[-1], "newest"), (ordered[0], "oldest")):
            if (here[at] > point[at]) if word == "newest" else (here[at] < point[at]):
                known = f"{package} {point[at]}, the {word} tested, is {_or(tested[point])}"
                why = f"{_named(packages, here)} was not tested; {known}"
                one = set(tested[point])
                return Lookup(None, why, nearest=one.pop() if len(one) == 1 else None)
    return Lookup(None, f"{_named(packages, here)} was not tested, nor releases around it")


def _named(packages: Sequence[str], point: Point) -> str:
    return " with ".join(f"{n} {version}" for n, version in zip(packages, point, strict=True))


def _or(statuses: Iterable[Status]) -> str:
    return " or ".join(sorted(statuses))
