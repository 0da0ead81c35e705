"""The status of installed releases for a bug, from recorded runs; nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from packaging.version import InvalidVersion, Version

from harness import catalog
from harness.sweep import affected
from harness.sweep.affected import Fact
from harness.sweep.cell import Status
from harness.text import short

Point = tuple[Version, ...]
"""Releases of the packages that are looked up, in the order of the scenario's pins."""


@dataclass(frozen=True)
class Lookup:
    """A status from recorded runs."""

    status: Status | None
    """``affected`` or ``not affected``; None if it is not known."""
    why: str
    tested: bool = False
    """Whether exactly these releases were run; otherwise their neighbours were."""


def lookup(name: str, have: Mapping[str, str]) -> Lookup:
    """The status of releases for a scenario: their own, otherwise that of their neighbours.

    ``have`` are releases by package. Several packages are looked up together. The neighbours of
    releases that were not tested are the nearest tested ones that are older or equal in every
    package, and those that are newer or equal in every package: they must all agree.
    """
    scenario = catalog.scenario(name)
    packages = [p for p in scenario.pins if p in have and p not in scenario.vehicles]
    try:
        here = tuple(Version(have[package]) for package in packages)
    except InvalidVersion as error:
        return Lookup(None, str(error))
    facts: dict[Point, list[Fact]] = {}
    for fact in affected.of(name):
        facts.setdefault(tuple(Version(fact["pins"][p]) for p in packages), []).append(fact)
    if not packages or not facts:
        return Lookup(None, "no results are recorded; check --run can tell")
    if own := facts.get(here):
        return _own(packages, here, own)
    return _between(packages, here, facts)


def _own(packages: Sequence[str], here: Point, facts: Sequence[Fact]) -> Lookup:
    """The result of exactly these releases."""
    named, statuses = _named(packages, here), _certain(facts)
    if len(statuses) == 1:
        (status,) = statuses
        return Lookup(status, f"{named} was tested on {max(f['date'] for f in facts)}", tested=True)
    if statuses:
        return Lookup(None, f"{named} was tested with different results")
    return Lookup(None, f"{named} was tested, without an answer: {short(facts[0]['reason'])}")


def _between(packages: Sequence[str], here: Point, facts: Mapping[Point, Sequence[Fact]]) -> Lookup:
    """The result of the nearest tested releases on both sides, if they agree."""
    certain = {point: found for point, of in facts.items() if (found := _certain(of))}
    older, newer = _nearest(certain, here, newer=False), _nearest(certain, here, newer=True)
    named = _named(packages, here)
    if not older or not newer:
        return Lookup(None, _outside(packages, here, certain))
    statuses = {status for point in (*older, *newer) for status in certain[point]}
    around = [
        f"{_named(packages, point)} ({' or '.join(sorted(certain[point]))})"
        for point in (*older, *newer)
    ]
    if len(statuses) > 1:
        return Lookup(None, f"{named} was not tested, and its neighbours differ: {_list(around)}")
    (status,) = statuses
    points = [_named(packages, point) for point in (*older, *newer)]
    return Lookup(status, f"{named} was not tested; {_list(points)} were")


def _outside(
    packages: Sequence[str], here: Point, certain: Mapping[Point, Iterable[Status]]
) -> str:
    """Why releases that are not between tested ones are unknown."""
    for at, package in enumerate(packages):
        ordered = sorted(certain, key=itemgetter(at))
        for end, word in ((ordered[-1:], "newest"), (ordered[:1], "oldest")):
            for point in end:
                if (here[at] > point[at]) if word == "newest" else (here[at] < point[at]):
                    status = " or ".join(sorted(certain[point]))
                    tested = f"{point[at]}, the {word} tested, is {status}"
                    return f"{package} {here[at]} was not tested; {tested}"
    return f"{_named(packages, here)} was not tested, nor releases around it"


def _nearest(points: Iterable[Point], here: Point, *, newer: bool) -> list[Point]:
    """The points nearest to ``here`` of those that are newer (or older) in every package."""

    def beyond(one: Point, other: Point) -> bool:
        pairs = zip(one, other, strict=True)
        return all(a >= b if newer else a <= b for a, b in pairs)

    side = [point for point in points if beyond(point, here)]
    return sorted(p for p in side if not any(q != p and beyond(p, q) for q in side))


def _certain(facts: Iterable[Fact]) -> set[Status]:
    return {status for fact in facts if (status := Status(fact["status"])).certain}


def _named(packages: Sequence[str], point: Point) -> str:
    return " with ".join(f"{n} {version}" for n, version in zip(packages, point, strict=True))


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
