"""Finds out from the index's own metadata why uv refuses requirements, or chooses old releases.

uv builds nothing here, so it never chooses a release without a wheel: it refuses, or it chooses a
release of years ago of what needs that one. pip would build it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from harness.check.contradictions import exact_versions
from harness.check.needs import NEEDS
from harness.check.problem import Contradiction, Problem, is_development_version
from harness.releases import index, index_pages
from harness.releases.index import Release
from harness.system.errors import Fault

MOST = 30
"""Releases of a package that are tried, newest first, if its newest one contradicts a file."""
LEVELS = 60
"""How often packages are looked at that others need: each time those that are new."""

LIMIT = 90.0
"""Seconds after which no further packages are looked at."""


@dataclass(frozen=True)
class Need:
    """What a release needs of a package."""

    dependent: str
    """The name of the package that needs it."""
    text: str
    """``vllm==0.8.4 depends on torch==2.6.0``"""
    specifier: SpecifierSet


@dataclass
class Obstacles:
    """What keeps uv from choosing what pip would install."""

    omissions: dict[str, str] = field(default_factory=dict)
    """The packages without a release that can be used, and what needs them."""
    sources: set[str] = field(default_factory=set)
    wheels: set[str] = field(default_factory=set)
    contradictions: dict[str, Contradiction] = field(default_factory=dict)
    doubtful: dict[str, Contradiction] = field(default_factory=dict)
    """Contradictions that other releases of what takes part in them might avoid."""

    def of(self, problem: Problem, *, all_of_them: bool) -> Problem:
        """The problem without these obstacles; without the doubtful ones only if all are meant, or
        if there are no others."""
        sources = (problem.sources | self.sources) - self.wheels
        contradictions = {**problem.contradictions, **self.contradictions}
        if all_of_them or not (
            self.omissions or self.sources - problem.sources or self.wheels or self.contradictions
        ):
            contradictions.update(self.doubtful)
        return replace(
            problem,
            omissions={**problem.omissions, **self.omissions},
            sources=sources,
            wheels=problem.wheels | self.wheels,
            contradictions=contradictions,
        )


class Pages:
    """The releases of packages that requirements allow, in the index that uv reads. Raises
    ``index_pages.NoNetwork`` if it does not respond."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.minor = problem, problem.minor
        self.known: dict[str, list[tuple[Version, Release]]] = {}

    def of(self, name: str) -> list[tuple[Version, Release]]:
        """All releases until the day, newest first; none if no index has the package, or tells."""
        if name not in self.known:
            day, releases = self.problem.day, []
            try:
                releases = index.releases(name, self.problem.content.indices[:1])
            except index_pages.NoNetwork:
                raise
            except Fault:
                pass
            self.known[name] = [
                (Version(release.version), release)
                for release in reversed(releases)
                if not (day and release.day > day)
            ]
        return self.known[name]

    def read(self, names: Iterable[str]) -> None:
        """Read the pages of packages at the same time."""
        with ThreadPoolExecutor(index_pages.AT_ONCE) as pool:
            list(pool.map(self.of, sorted(set(names) - self.known.keys())))

    def allowed(
        self, name: str, specifiers: SpecifierSet, minor: int = 0
    ) -> Iterator[tuple[Version, Release]]:
        """The releases for a Python that are allowed, newest first, as a wheel or as source.
        Pre-releases only if there are no others, or if the specifiers name one."""
        is_exact = bool(exact_versions(specifiers))
        matches = [
            (version, release)
            for version, release in self.of(name)
            if specifiers.contains(version, prereleases=True)
        ]
        has_final = any(not version.is_prerelease for version, _ in matches)
        for version, release in matches:
            is_meant = not (version.is_prerelease and has_final) or specifiers.prereleases
            if (
                is_meant
                and (is_exact or not release.yanked)
                and index.allows(release.python, minor or self.minor)
            ):
                yield version, release

    def newest(self, name: str, specifiers: SpecifierSet) -> tuple[Version, Release] | None:
        """The newest release that is allowed."""
        return next(self.allowed(name, specifiers), None)

    def usable(self, name: str, specifiers: SpecifierSet, minor: int = 0) -> Iterator[Release]:
        """Those releases that uv can choose."""
        minor = minor or self.minor
        is_source = name in self.problem.sources
        for _, release in self.allowed(name, specifiers, minor):
            if release.has_source if is_source else release.has_wheel(minor):
                yield release


def settled(problem: Problem) -> Problem:
    """The problem without the required packages of which no release can be used, for the Python for
    which these are fewest: xformers 0.0.19 needs torch 2.0.0, and Python 3.10."""
    pages = Pages(problem)
    names = problem.required.keys() - problem.omissions.keys()
    pages.read(names)
    developments = {
        name
        for name in names - problem.developments
        if any(map(is_development_version, problem.required[name]))
        if not pages.newest(name, problem.limits[name])
    }
    problem = replace(problem, developments=problem.developments | developments)
    pages.problem = problem

    def unusable(minor: int) -> set[str]:
        limits = problem.limits
        return {name for name in names if not any(pages.usable(name, limits[name], minor))}

    # A source that is only there as a wheel is one after all.
    wheels = {
        name
        for name in unusable(pages.minor) & problem.sources
        if any(r.has_wheel(pages.minor) for _, r in pages.allowed(name, problem.limits[name]))
    }
    problem = replace(problem, wheels=problem.wheels | wheels, sources=problem.sources - wheels)
    pages.problem = problem
    lacking = unusable(pages.minor)
    minors = Counter(
        minor
        for name in lacking - problem.content.direct.keys()
        for minor in _minors(pages, name)
        if minor != pages.minor and index.allows(problem.content.python, minor)
    )
    if minors:
        best = max(minors, key=lambda minor: (minors[minor], minor))
        if len(others := unusable(best)) < len(lacking):
            wanting = tuple(sorted(lacking - others))
            problem = replace(problem, python=f"3.{best}", wanting=wanting)
            lacking = others
    return replace(problem, omissions={**problem.omissions, **dict.fromkeys(lacking, "")})


def _minors(pages: Pages, name: str) -> set[int]:
    """The Pythons for which a package has wheels in the releases that are allowed."""
    specifiers = pages.problem.limits[name]
    return {
        minor
        for version, release in pages.of(name)
        if specifiers.contains(version, prereleases=True)
        for minor in release.minors
    }


class Walk:
    """A walk from packages to what they need, in the releases that pip would try first."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.pages = Pages(problem)
        self.obstacles = Obstacles()
        self.chosen: dict[str, Release] = {}
        self.needs: dict[str, dict[str, Need]] = {}
        self.extras: dict[str, set[str]] = {
            n: set(e) for n, e in problem.content.required.extras.items()
        }
        self.noted_extras: dict[str, frozenset[str]] = {}
        self.fixed: set[str] = set()
        """The packages that are certainly needed, and in no other release: so is what they need."""
        self.retries: set[tuple[str, str]] = set()
        """The packages that were chosen anew because of what they need of another one."""
        version = f"3.{problem.minor}"
        ours = {str(k): str(v) for k, v in default_environment().items()}
        other = {"python_version": version, "python_full_version": f"{version}.99"}
        self.markers = {**ours, **(other if problem.python else {})}

    # Why uv refused

    def of_refusal(self) -> Obstacles:
        """Walk from all that is required, and note each obstacle."""
        names = {*self.problem.required} - self.problem.omissions.keys()
        end = time.monotonic() + LIMIT
        for _ in range(LEVELS):
            self.pages.read(names)
            releases = [next(self._candidates(name), None) for name in sorted(names)]
            self._read_needs(filter(None, releases))
            names = {need for name in sorted(names) for need in self._choose(name)}
            if not names or time.monotonic() > end:
                break
        return self.obstacles

    def _specifiers(self, name: str) -> SpecifierSet:
        """All that is required of a package."""
        specifiers = self.problem.limits.get(name, SpecifierSet())
        for need in self.needs.get(name, {}).values():
            specifiers &= need.specifier
        return specifiers

    def _candidates(self, name: str) -> Iterator[Release]:
        return self.pages.usable(name, self._specifiers(name))

    def _requirements(self, release: Release) -> Sequence[Requirement]:
        """What a release needs anywhere; nothing if nobody knows."""
        return index.needs(release, self.problem.minor) or ()

    def _read_needs(self, releases: Iterable[Release]) -> None:
        """Read what releases need at the same time."""
        with ThreadPoolExecutor(index_pages.AT_ONCE) as pool:
            list(pool.map(self._requirements, releases))

    def _choose(self, name: str) -> Iterator[str]:
        """Choose a release of a package. Yields the packages that must be looked at."""
        is_needed = name in self.problem.required or self.needs.get(name, {}).keys() & self.fixed
        if is_needed and len(list(islice(self.pages.usable(name, self._certain(name)), 2))) == 1:
            self.fixed.add(name)
        if next(self._candidates(name), None) is None:
            yield from self._note_obstacle(name)
            if name not in self.problem.limits and not self.needs.get(name):
                return
        candidates = list(islice(self._candidates(name), MOST))
        for number, release in enumerate(candidates):
            if number == 1:
                self._read_needs(candidates)
            if self._fits(name, release):
                yield from self._note_needs(name, release)
                return
        if is_needed and len(candidates) < MOST:
            self.fixed.add(name)
        if candidates:
            yield from self._note_needs(name, candidates[0])

    def _certain(self, name: str) -> SpecifierSet:
        """What is required of a package whatever releases of others are chosen."""
        specifiers = self.problem.limits.get(name, SpecifierSet())
        for dependent, need in self.needs.get(name, {}).items():
            specifiers &= need.specifier if dependent in self.fixed else SpecifierSet()
        return specifiers

    def _fits(self, name: str, release: Release) -> bool:
        """Whether what a release needs is allowed, as far as that is certain."""
        return all(
            self.pages.newest(need.name, certain & need.specifier)
            for need in self._needs_of(name, release)
            if self.problem.is_free(need.name)
            if str(certain := self._certain(need.name))
        )

    def _needs_of(self, name: str, release: Release) -> list[Requirement]:
        """What a release needs here; nothing if nobody knows."""
        if name in self.problem.sources:
            return [Requirement(need) for need in NEEDS.get(name, ())]
        extras, seen, needs = {"", *self.extras.get(name, ())}, set[str](), list[Requirement]()
        while extras - seen:  # an extra may need another one of the same package
            seen |= extras
            needs = [one for one in self._requirements(release) if self._holds(one, extras)]
            extras = extras.union(*(need.extras for need in needs if need.name == name))
        return [need for need in needs if need.name != name]

    def _holds(self, requirement: Requirement, extras: Collection[str]) -> bool:
        marker = requirement.marker
        return marker is None or any(marker.evaluate({**self.markers, "extra": e}) for e in extras)

    def _note_needs(self, name: str, release: Release) -> Iterator[str]:
        if self.chosen.get(name) == release and not self._has_new_extras(name):
            return
        for those in self.needs.values():
            those.pop(name, None)
        self.chosen[name] = release
        self.noted_extras[name] = frozenset(self.extras.get(name, ()))
        limit = str(self.problem.limits.get(name, ""))
        dependent = f"{name}{limit or f'=={release.version}'}"
        for requirement in self._needs_of(name, release):
            other = requirement.name
            if other in self.problem.omissions or requirement.url:
                continue
            before = self._specifiers(other)
            self.extras.setdefault(other, set()).update(requirement.extras)
            those = self.needs.setdefault(other, {})
            if self.problem.is_free(other):
                text = f"{dependent} depends on {other}{requirement.specifier}"
                those[name] = Need(name, text, requirement.specifier)
            is_new = other not in self.chosen and not those.keys() - {name}
            if is_new or self._has_new_extras(other) or self._specifiers(other) != before:
                yield other

    def _has_new_extras(self, name: str) -> bool:
        return self.extras.get(name, set()) > self.noted_extras.get(name, frozenset())

    def _note_obstacle(self, name: str) -> Iterator[str]:
        """Note why no release of a package meets all that is required of it. Yields what must be
        chosen anew."""
        problem, those = self.problem, list(self.needs.get(name, {}).values())
        specifiers = self._specifiers(name)
        reason = those[0].text if those else ""
        if not self.pages.of(name):
            self.obstacles.omissions[name] = reason
        elif releases := [release for _, release in self.pages.allowed(name, specifiers)]:
            minor = problem.minor
            if name in problem.sources and any(r.has_wheel(minor) for r in releases):
                self.obstacles.wheels.add(name)
            elif any(release.has_source for release in releases) and name not in problem.wheels:
                self.obstacles.sources.add(name)
            else:
                self.obstacles.omissions[name] = reason
        elif those:
            yield from self._note_contradiction(name, those)
        else:
            self.obstacles.omissions[name] = ""

    def _note_contradiction(self, name: str, needs: list[Need]) -> Iterator[str]:
        limit = self.problem.limits.get(name, SpecifierSet())

        def is_met(*some: Need) -> bool:
            specifiers = limit
            for need in some:
                specifiers &= need.specifier
            return self.pages.newest(name, specifiers) is not None

        culprits: list[tuple[Need, ...]] = [(need,) for need in needs if not is_met(need)]
        if not culprits:
            culprits += [pair for pair in combinations(needs, 2) if not is_met(*pair)][:1]
        parts = list(dict.fromkeys(need for each in culprits or [tuple(needs)] for need in each))
        free = {part.dependent for part in parts} - self.fixed
        for dependent in {one for one in free if (one, name) not in self.retries}:
            self.retries.add((dependent, name))
            del self.needs[name][dependent]
            self.chosen.pop(dependent, None)  # maybe it is to be chosen anew already
            yield dependent
        if any(part.dependent not in self.needs[name] for part in parts):
            return
        names = {part.dependent for part in parts} | {name}
        kind = self.obstacles.doubtful if free else self.obstacles.contradictions
        kind[name] = Contradiction(
            name,
            tuple(sorted(part.text for part in parts)),
            tuple(sorted(n for n in names if str(self.problem.limits.get(n, "")))),
        )
        for part in parts:
            del self.needs[name][part.dependent]

    # Why uv chose old releases

    def of_solution(
        self, versions: Mapping[str, str], via: Mapping[str, Collection[str]], names: Iterable[str]
    ) -> dict[str, set[str]]:
        """The packages without wheels because of which uv chose old releases of packages, or of
        what decides these: by package, what it would need."""
        limits, obstacles = self.problem.limits, dict[str, set[str]]()
        waiting, seen = sorted({*names} & versions.keys()), set[str]()
        while waiting:
            self.pages.read(waiting)
            level, waiting = waiting, []
            seen |= {*level}
            for name in level:
                limit = limits.get(name, SpecifierSet())
                newest, whole = self.pages.newest(name, limit), limit
                if not (newest and newest[0] > Version(versions[name])):
                    continue
                bounds = {
                    other: self._bound(name, other, versions)
                    for other in via.get(name, ())
                    if other in versions
                }
                for other, bound in bounds.items():
                    whole &= bound
                    if not bound.contains(newest[0], prereleases=True):
                        waiting += [other] if other not in seen else []
                best = self.pages.newest(name, whole)
                if best and best[0] > Version(versions[name]):
                    sources = set(self._unbuilt(name, best[1], versions, set()))
                    if sources:
                        obstacles[name] = sources
            waiting = sorted({*waiting} - seen)
        return obstacles

    def _bound(self, name: str, dependent: str, versions: Mapping[str, str]) -> SpecifierSet:
        """What a chosen package needs of another one."""
        specifiers = SpecifierSet()
        if not self.problem.is_free(name):
            return specifiers
        version = Version(versions[dependent])
        for release in (r for v, r in self.pages.of(dependent) if v == version):
            for need in self._needs_of(dependent, release):
                specifiers &= need.specifier if need.name == name else SpecifierSet()
        return specifiers

    def _unbuilt(
        self, name: str, release: Release, versions: Mapping[str, str], seen: set[str]
    ) -> Iterator[str]:
        """The packages without wheels that a release needs, or itself."""
        seen.add(name)
        if name in self.problem.sources:
            return
        if not release.has_wheel(self.problem.minor):
            if name not in self.problem.wheels and release.has_source:
                yield name
            return
        for need in self._needs_of(name, release):
            other, version = need.name, versions.get(need.name)
            is_met = version and need.specifier.contains(version, prereleases=True)
            if is_met or other in seen or not self.problem.is_free(other):
                continue
            limit = self.problem.limits.get(other, SpecifierSet())
            if newest := self.pages.newest(other, limit & need.specifier):
                wheels = self.pages.usable(other, limit & need.specifier)
                yield from self._unbuilt(other, next(wheels, newest[1]), versions, seen)
