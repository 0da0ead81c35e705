"""The status of releases for a bug, from recorded runs; nothing is run.

Releases that were not tested get the status of the nearest tested ones around them, if these agree.
To count how often that is wrong, each recorded status is inferred from all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from harness.bugs import catalog, result_file
from harness.bugs.api.spec import Present, Scenario
from harness.bugs.pins import matches
from harness.bugs.results import Result, Status
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


def neighbours(tested: Mapping[Point, Iterable[Status]], target: Point) -> Neighbours:
    """The neighbours of a point. A point itself is its own neighbour, if it was tested.

    Of one package, a release without a certain status is a neighbour like any other. Of several,
    such points do not count: often two releases cannot even be installed together.
    """
    points = {point: set(statuses) for point, statuses in tested.items()}
    if len(target) > 1:
        certain = {p: {s for s in of if s.certain} for p, of in points.items()}
        points = {point: statuses for point, statuses in certain.items() if statuses}
    older, newer = _nearest(points, target, newer=False), _nearest(points, target, newer=True)
    of_nearest: set[Status] = set()
    for point in (*older, *newer):
        of_nearest |= {status for status in points[point] if status.certain} or points[point]
    differing = tuple(_differing(points, target, of_nearest))
    return Neighbours(older, newer, frozenset(of_nearest), differing)


def _differing(
    points: Mapping[Point, set[Status]], target: Point, of_nearest: set[Status]
) -> Iterator[Point]:
    """For one package: the second points on both sides, if they certainly differ from the first."""
    if len(target) > 1 or target in points or _same_series(points, target):
        return
    before, after = sorted(p for p in points if p < target), sorted(p for p in points if p > target)
    for point in (*before[-2:-1], *after[1:2]):
        if any(status.certain and status not in of_nearest for status in points[point]):
            yield point


def _same_series(points: Iterable[Point], target: Point) -> bool:
    """Whether both neighbours of a release are in its own series, as 4.57.1 and 4.57.6 are for
    4.57.3: then a difference beyond them does not matter. A development version is in the series
    between the releases before and after it."""
    (version,) = target
    if version.is_prerelease:
        return True
    series = [p for p in points if p[0].release[:2] == version.release[:2]]
    return any(p < target for p in series) and any(p > target for p in series)


def _nearest(points: Iterable[Point], target: Point, *, newer: bool) -> tuple[Point, ...]:
    """The points nearest to ``target`` among those that are newer (or older) in every package."""
    if len(target) == 1:  # the usual case, and a site asks thousands of times
        of_one = [point for point in points if (point >= target if newer else point <= target)]
        return (min(of_one) if newer else max(of_one),) if of_one else ()

    def beyond(candidate: Point, limit: Point) -> bool:
        pairs = zip(candidate, limit, strict=True)
        return all(a >= b if newer else a <= b for a, b in pairs)

    side = [point for point in points if beyond(point, target)]
    return tuple(sorted(p for p in side if not any(q != p and beyond(p, q) for q in side)))


RIGHT, UNKNOWN, WRONG = "right", "unknown", "wrong"


def judged(name: str) -> Iterator[tuple[Point, str]]:
    """Each recorded point of a bug with a certain status, and what is inferred without it.

    All cells of the point are left out, also those with other releases of packages that do not
    decide.
    """
    packages = catalog.scenario(name).deciding
    tested: dict[Point, set[Status]] = {}
    for cell in result_file.statuses(name) if packages else ():
        point = tuple(Version(cell.pins[package]) for package in packages)
        tested.setdefault(point, set()).add(cell.status)
    for point, statuses in tested.items():
        certain = {status for status in statuses if status.certain}
        if len(certain) == 1:
            others = {other: of for other, of in tested.items() if other != point}
            inference = neighbours(others, point).status
            yield point, UNKNOWN if inference is None else RIGHT if inference in certain else WRONG


@dataclass(frozen=True)
class Lookup:
    """A status from recorded runs."""

    status: Status | None
    """``affected`` or ``not affected``; None if it is not known."""
    why: str
    tested: bool = False
    """Whether exactly these releases were run; otherwise their neighbours were."""
    is_read: bool = False
    """Whether upstream's history or source says so, and not a run."""
    nearest: Status | None = None
    """Of releases beyond the tested ones: the status of the newest or oldest of those."""


def lookup(name: str, have: Mapping[str, str]) -> Lookup:
    """The status of releases for a scenario: their own, otherwise that of their neighbours.

    ``have`` are releases by package. All packages that decide are looked up together, see
    ``neighbours``; the others are ignored.
    """
    scenario = catalog.scenario(name)
    have = {**scenario.without, **have}
    packages = tuple(package for package in scenario.deciding if package in have)
    try:
        target = tuple(Version(have[package]) for package in packages)
    except InvalidVersion as error:
        return Lookup(None, str(error))
    cells = result_file.by_point(name, packages)
    if not packages or not cells:
        return Lookup(None, "no results are recorded; check --run can tell")
    measurement = _measurement(_label(packages, target), cells[target]) if target in cells else None
    if measurement and measurement.status:
        return measurement
    if reading := _reading(scenario, dict(zip(packages, target, strict=True))):
        return reading
    if measurement:
        return measurement
    tested = {point: {cell.status for cell in of} for point, of in cells.items()}
    return _between(packages, target, tested)


def _reading(scenario: Scenario, target: Mapping[str, Version]) -> Lookup | None:
    """What upstream's own history and source say of these releases; None if they say nothing."""
    releases = {name: str(version) for name, version in target.items()}
    for entry in (*scenario.absent, *scenario.present):
        if matches(entry.releases, releases):
            is_there = isinstance(entry, Present)
            name = Requirement(entry.releases).name
            link = f" ({entry.link})" if entry.link else ""
            words = "has it, as its source shows" if is_there else "cannot have it"
            status = Status.AFFECTED if is_there else Status.NOT_AFFECTED
            return Lookup(status, f"{name} {target[name]} {words}: {entry.why}{link}", is_read=True)
    return None


def infer(tested: Iterable[tuple[str, Status]], version: str) -> Lookup:
    """The status of a release of one package: that of both neighbours if they agree. ``tested`` has
    versions with their statuses."""
    points: dict[Point, set[Status]] = {}
    for release, status in tested:
        points.setdefault((Version(release),), set()).add(status)
    sides = neighbours(points, (Version(version),))
    if sides.status is None:
        return Lookup(None, "")
    ((older,),), ((newer,),) = sides.older, sides.newer
    return Lookup(sides.status, f"as {older} and {newer} are; not tested itself")


def why_affected(name: str, have: Mapping[str, str]) -> str:
    """Why these releases have the bug; empty if they do not have it, or if it is not known."""
    answer = lookup(name, have)
    return answer.why if answer.status is Status.AFFECTED else ""


def _measurement(label: str, cells: Sequence[Result]) -> Lookup:
    """The result of exactly these releases."""
    statuses = {cell.status for cell in cells if cell.status.certain}
    if len(statuses) == 1:
        (status,) = statuses
        day = max(cell.day for cell in cells)
        return Lookup(status, f"{label} was tested on {day}: {_has(status)} the bug", tested=True)
    if statuses:
        return Lookup(None, f"{label} was tested with different results")
    return Lookup(None, f"{label} was tested, without a certain result: {short(cells[0].reason)}")


def _between(
    packages: Sequence[str], target: Point, tested: Mapping[Point, Iterable[Status]]
) -> Lookup:
    """The result of the nearest tested releases on both sides, if they agree."""
    sides, label = neighbours(tested, target), _label(packages, target)
    if not sides.older or not sides.newer:
        return _outside(packages, target, tested)
    if sides.differing and len(sides.statuses) == 1:
        points = [*sides.differing, *_around(sides)]
        words = listed([f"{_label(packages, p)} ({_or(tested[p])})" for p in points])
        return Lookup(None, f"{label} was not tested, and releases around it differ: {words}")
    if sides.status is None:
        around = listed([f"{_label(packages, p)} ({_or(tested[p])})" for p in _around(sides)])
        return Lookup(None, f"{label} was not tested, and its neighbours differ: {around}")
    around = listed([_label(packages, point) for point in _around(sides)])
    has = f"all {_have(sides.status)}" if len(_around(sides)) > 2 else f"both {_have(sides.status)}"
    return Lookup(sides.status, f"{label} was not tested, but {around} {has} the bug")


def _has(status: Status) -> str:
    return "it has" if status is Status.AFFECTED else "it does not have"


def _have(status: Status) -> str:
    return "have" if status is Status.AFFECTED else "do not have"


def _around(sides: Neighbours) -> list[Point]:
    return list(dict.fromkeys((*sides.older, *sides.newer)))


def _outside(
    packages: Sequence[str], target: Point, tested: Mapping[Point, Iterable[Status]]
) -> Lookup:
    """Why releases that are not between tested ones are unknown."""
    for at, package in enumerate(packages):
        ordered = sorted(tested, key=itemgetter(at))
        for point, word in ((ordered[-1], "newest"), (ordered[0], "oldest")):
            if (target[at] > point[at]) if word == "newest" else (target[at] < point[at]):
                edge = f"{package} {point[at]}, the {word} tested, is {_or(tested[point])}"
                why = f"{_label(packages, target)} was not tested; {edge}"
                statuses = set(tested[point])
                return Lookup(None, why, nearest=statuses.pop() if len(statuses) == 1 else None)
    return Lookup(None, f"{_label(packages, target)} was not tested, nor releases around it")


def _label(packages: Sequence[str], point: Point) -> str:
    return " with ".join(f"{n} {version}" for n, version in zip(packages, point, strict=True))


def _or(statuses: Iterable[Status]) -> str:
    return " or ".join(sorted(statuses))
