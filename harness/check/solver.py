"""Has uv choose releases that fit together. It stops at the first obstacle: solver removes it and
tries again, until uv chooses.

- A package without a wheel for this Python, or without such a release, is left out. All others
  still constrain each other. What pip would build is chosen nevertheless (see ``source_only``).
- If a package needs another release of something than the files name, the files' own requirement
  replaces what the package needs: ``vllm==0.8.4`` needs torch 2.6.0, and the file has 2.5.1.
- If two packages need different releases of something that no file names, its release is unknown.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import Version

from harness.bugs import pins
from harness.bugs.result_file import tested_releases
from harness.check import needs, source_only, uv_errors
from harness.check.contradictions import contradictions
from harness.check.installed import public_build
from harness.check.requirements import Requirements
from harness.check.source_only import Search
from harness.check.uv_errors import Contradiction
from harness.releases import index, locks, uv
from harness.system.errors import Fault
from harness.system.text import listed, one_line, short

LONGEST = 300
"""Characters of a list of packages, or of uv's errors, in a line."""
TRIES = 100
"""How often uv is started at most: each time it names packages that it cannot use."""
LIMIT = 90.0
"""Seconds for uv, each time."""
AT_ONCE = 8
"""Packages that are looked up at the same time."""
NOT_LOOKED_UP = "the user's configuration of uv does not allow to find out whether it is needed"


class NotResolved(Exception):
    """uv chose no releases; the message says why."""


class NoAnswer(NotResolved):
    """The index or uv did not respond, which says nothing of the requirements."""


@dataclass(frozen=True)
class Solution:
    """What uv chose."""

    versions: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """The packages of ours that something needs, and why their releases were not found."""
    contested: Mapping[str, str] = field(default_factory=dict)
    """The packages that are needed in different releases, with what needs them."""
    notes: Sequence[str] = ()
    python: str = ""
    """The Python that the releases are for, ``3.8``; empty for ours."""
    is_whole: bool = False
    """Whether uv looked at all requirements, so that it would find the same again today."""


class _Answer(NamedTuple):
    """What uv answered: the versions, or None and its errors on one line; and its log."""

    versions: Mapping[str, str] | None
    errors: str
    log: str


@dataclass
class _Task:
    """The requirements as they are tried, and what was removed from them."""

    content: Requirements
    required: Mapping[str, SpecifierSet]
    day: str
    omissions: set[str]
    sources: set[str] = field(default_factory=set)
    """The packages that uv may choose without a wheel (see ``source_only``)."""
    wheels: set[str] = field(default_factory=set)
    """The packages that uv must choose as a wheel: those that they would need as source were not
    there, or contradicted others."""
    may_lack_release: set[str] = field(default_factory=lambda: set(source_only.FREQUENT))
    developments: set[str] = field(default_factory=set)
    """The packages of which no index has the development version: instead, their release."""
    python: str = ""
    """The Python to choose releases for, ``3.10``; empty for ours."""
    wanting: tuple[str, ...] = ()
    """The packages that have wheels for that Python and none for ours."""
    python_is_settled: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    """What needs an omission."""
    elsewhere: set[str] = field(default_factory=set)
    """The omissions to which a constraint gives an address, and that another package needs."""
    contradictions: dict[str, Contradiction] = field(default_factory=dict)
    """By the package of which no release meets all that is required."""

    def compile(self, *options: str) -> _Answer:
        """What ``uv pip compile`` chooses. Raises NoAnswer if uv takes too long."""
        command, stdin, files = self.uv_input()
        environment = {"UV_HTTP_RETRIES": "1", "RUST_LOG": source_only.LOG}
        sources = sorted(self.sources - self.omissions)
        needed = {n: needs.NEEDS.get(n, ()) for n in sources} if self.sources else None
        try:
            process = uv.execute([*command, *options], stdin, environment, files, LIMIT, needed)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"uv did not answer within {LIMIT:.0f} s") from None
        log, errors = uv_errors.without_log(process.stderr)
        if process.returncode:
            return _Answer(None, errors, log)
        lines = (line.partition(";")[0].strip() for line in process.stdout.splitlines())
        return _Answer(locks.versions("\n".join(line for line in lines if "==" in line)), "", log)

    def build(self, log: str, our_packages: Collection[str]) -> bool:
        """Let uv choose packages without a wheel, of which it rejected the releases that pip would
        build; whether there are any."""
        if not self.sources:
            return False
        others = {*self.sources, *self.wheels, *self.omissions}
        others |= {*self.content.direct, *self.content.overrides}
        whose_release_counts = {*self.required, *our_packages} - others
        searches = [
            search
            for search in source_only.searches(log)
            if (
                search.name in whose_release_counts
                if search.selected
                else search.name not in {*others, *self.required}
            )
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(self._is_built, searches)
            sources = {one.name for one, answer in zip(searches, answers, strict=True) if answer}
        self.sources |= sources
        return bool(sources)

    def leave_to_constraints(self, versions: Mapping[str, str]) -> bool:
        """Leave out the packages that are needed and to which only a constraint gives an address:
        nobody knows what they need there. Whether there are any."""
        direct = {name for name, package in self.content.direct.items() if not package.version}
        names = (direct & versions.keys()) - self.content.versions.keys() - self.omissions
        self.elsewhere |= names
        self.omissions |= names
        return bool(names)

    def prefer_wheels(self, errors: str) -> bool:
        """Let uv choose the wheels of packages that have no release as source; whether there are
        such."""
        names = self.sources & (uv_errors.without_source(errors) - uv.never_wheels())
        self.sources -= names
        self.wheels |= names
        return bool(names)

    def _is_built(self, search: Search) -> bool:
        """Whether a newer release than those with wheels has a source distribution. uv has just
        read which releases there are, so that this takes a tenth of a second."""
        version = self._newest(search, {search.name: ()})
        if not version or (search.selected and Version(version) <= Version(search.selected)):
            return False
        with_wheel = self._newest(search, {})
        return not with_wheel or Version(version) > Version(with_wheel)

    def _newest(self, search: Search, needed: Mapping[str, Sequence[str]]) -> str:
        """The newest version of a package that uv can choose; empty if there is none."""
        command, environment = [*self._command(), "--no-deps"], {"UV_HTTP_RETRIES": "1"}
        try:
            process = uv.execute(command, search.requirement, environment, {}, LIMIT, needed)
        except subprocess.TimeoutExpired:
            return ""
        return locks.versions(process.stdout).get(search.name, "")

    def _command(self) -> list[str]:
        """The words of the command that all tries have."""
        content = self.content
        return [
            *("pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--color=never"),
            *("--only-binary", ":all:"),
            *((f"--exclude-newer={self.day}",) if self.day else ()),
            *((f"--default-index={content.indices[0]}",) if any(content.indices[:1]) else ()),
            *(("--python-version", self.python) if self.python else ()),
        ]

    def uv_input(self) -> tuple[list[str], str, dict[str, list[str]]]:
        """The words of the command, its standard input, and the lines of its files.

        An override leaves an omission out; what it needs, as far as ``NEEDS`` says, is required.
        """
        content, omissions = self.content, self.omissions
        lines = [
            _as_release(f"{name}{_extras(content, name)}{v}", developed=name in self.developments)
            for name, v in self.required.items()
        ]
        others = {
            need for name in omissions & self.required.keys() for need in needs.NEEDS.get(name, ())
        }
        stdin = "".join(f"{line}\n" for line in [*lines, *sorted(others)])
        bounds = [_as_release(f"{name}{versions}") for name, versions in content.bounds.items()]
        replacements = {n: lines for n, lines in content.overrides.items() if n not in omissions}
        for name in sorted(self.contradictions.keys() - omissions):
            line = f"{name}{_extras(content, name)}{self.limits.get(name, '')}"
            replacements[name] = [_as_release(line, developed=name in self.developments)]
        overrides = [
            _as_release(line)
            for lines in replacements.values()
            for line in lines
            if Requirement(line).url is None  # uv would build what is there
        ]
        lists = {"--override": [*uv.left_out(omissions), *overrides], "--constraint": bounds}
        return self._command(), stdin, lists

    @property
    def limits(self) -> Mapping[str, SpecifierSet]:
        """The versions that the files allow, also those of constraints."""
        return {**self.content.bounds, **self.required}

    def leave_out(self, errors: str) -> bool:
        """Leave out what uv cannot use, and all of that kind; whether there is anything."""
        names = self._obstacles(errors)
        if developments := {name for name in names if self._is_development(name)}:
            self.developments |= developments
            return True
        if not names:
            return False
        before = set(self.omissions)
        self.omissions |= names
        reasons = uv_errors.needs(errors, self.limits)
        self.reasons.update((n, reasons.get(n, "another package needs it")) for n in names)
        if names & self.required.keys():
            others = self._others_without_wheels()
            self.omissions |= others
            self._settle_python(before)
        return True

    def _is_development(self, name: str) -> bool:
        """Whether a development version is required, and its release was not tried yet."""
        specifiers = self.required.get(name, SpecifierSet())
        return name not in self.developments and any(map(_is_development, specifiers))

    def _settle_python(self, before: set[str]) -> None:
        """Choose releases for another Python if packages that have no wheels for ours have some for
        it, and if fewer must then be left out: xformers 0.0.19 needs torch 2.0.0, and Python 3.10.
        """
        if self.python_is_settled:
            return
        self.python_is_settled = True
        omissions, ours = self.omissions, self.python
        lacking = sorted(((omissions - before) & self.required.keys()) - self.content.direct.keys())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            minors = dict(zip(lacking, pool.map(self._minors, lacking), strict=True))
        counts = Counter(minor for those in minors.values() for minor in those)
        if not counts:
            return
        minor = max(counts, key=lambda minor: (counts[minor], minor))
        self.python, self.omissions = f"3.{minor}", before
        self.omissions = before | self._others_without_wheels()
        if len(self.omissions) >= len(omissions):
            self.python, self.omissions = ours, omissions
        else:
            self.wanting = tuple(name for name in lacking if name not in self.omissions)

    def _minors(self, name: str) -> set[int]:
        """The other Pythons for which a package has wheels in the releases that are allowed, and
        that the project is for."""
        try:
            releases = self._allowed_releases(name)
        except Fault:
            return set()
        minors = {minor for release in releases for minor in release.minors}
        return {minor for minor in minors if index.allows(self.content.python, minor)} - {
            _our_minor()
        }

    def _is_unusable(self, name: str) -> bool:
        """Whether the index certainly has no release that is allowed and has a wheel for the
        Python that is tried."""
        minor = int(self.python.partition(".")[2]) if self.python else _our_minor()
        try:
            releases = self._allowed_releases(name)
        except index.NoPackage:
            return True
        except Fault:
            return False
        return not any(release.wheels and release.fits(minor) for release in releases)

    def _allowed_releases(self, name: str) -> list[index.Release]:
        """The releases that the files allow. Raises Fault if an index cannot be read."""
        specifiers, day = self.content.versions[name], self.day
        return [
            release
            for release in index.releases(name, self.content.indices)
            if specifiers.contains(release.version, prereleases=True)
            if not (day and release.day > day)
        ]

    def _obstacles(self, errors: str) -> set[str]:
        without_release = uv_errors.without_release(errors, self.required) - self.omissions
        self.may_lack_release |= without_release
        return (uv_errors.unusable(errors) - self.omissions) | without_release

    def _others_without_wheels(self) -> set[str]:
        """The required packages that uv cannot use, either, by its cache alone and without what
        packages need: that takes a tenth of a second for each, and a full try takes seconds."""
        first, doubtful = self.omissions, set[str]()
        try:
            for _ in range(TRIES):
                versions, errors, _ = self.compile("--no-deps", "--offline")
                names = set() if versions is not None else self._obstacles(errors)
                if developments := {name for name in names if self._is_development(name)}:
                    self.developments |= developments
                    continue
                absent = uv_errors.not_stored(errors) - self.omissions
                doubtful |= absent | (names & self.may_lack_release)
                if not names | absent:
                    break
                self.omissions = self.omissions | names | absent
            sure = (self.omissions - first - doubtful) & self.required.keys()
        finally:
            self.omissions = first
        asked = sorted(
            (doubtful & self.required.keys()) - self.content.direct.keys() - self.sources
        )
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(self._is_unusable, asked)
            return sure | {name for name, answer in zip(asked, answers, strict=True) if answer}

    def has_no_release(self, name: str) -> bool:
        """Whether the index certainly has no release that requirements allow, or had none on the
        day.

        Not certain, so False: the package comes from an address; its version has a label, which is
        from another index that the file need not name; or the index does not respond.
        """
        specifiers = self.content.versions[name]
        if name in self.content.direct or "+" in str(specifiers):
            return False
        if not self.day and any(map(specifiers.contains, tested_releases(name))):
            return False
        try:
            releases = index.releases(name, self.content.indices)
        except Fault:
            return False
        published = (r.version for r in releases if not (self.day and r.day > self.day))
        return not any(specifiers.contains(version, prereleases=True) for version in published)

    def settle(self, errors: str) -> bool:
        """Settle a contradiction: the files' requirement counts; whether there is one."""
        contradiction = uv_errors.contradiction(errors, self.limits)
        names = set(contradiction.names if contradiction else ()) - self.contradictions.keys()
        names -= self.omissions
        if contradiction and names:
            self.contradictions.update(dict.fromkeys(sorted(names), contradiction))
        return bool(names)


def first_input(content: Requirements, day: str) -> tuple[list[str], str, dict[str, list[str]]]:
    """What uv gets at the first try: the same input has the same answer."""
    return _task(content, content.versions, day).uv_input()


def choose_versions(
    content: Requirements,
    required: Mapping[str, SpecifierSet],
    our_packages: Collection[str],
    day: str,
) -> Solution:
    """The versions that uv chooses, and notes for the user about what was removed.

    Raises NotResolved if nobody understands why uv chooses none, and NoAnswer if the index or uv
    does not respond.
    """
    task = _task(content, required, day)
    for _ in range(TRIES):
        versions, errors, log = task.compile()
        if uv_errors.SILENT_INDEX.search(errors):
            raise NoAnswer("the package index does not respond")
        if task.build(log, our_packages):
            continue
        if versions is not None:
            if task.leave_to_constraints(versions):
                continue
            return _solution(task, versions, our_packages)
        if task.prefer_wheels(errors):
            continue
        if not (task.leave_out(errors) or task.settle(errors)):
            break
    raise NotResolved(short(one_line(errors.removeprefix("error: ")), LONGEST))


def _task(content: Requirements, required: Mapping[str, SpecifierSet], day: str) -> _Task:
    """The requirements without what no index has, and without what contradicts itself; uv finds out
    which others there are."""
    omissions = {
        *(
            n
            for n in content.versions.keys() & content.direct.keys()
            if not content.direct[n].version
        ),
        *_of_one_package(content),
    }
    sources = {*source_only.FREQUENT, *uv.never_wheels()}
    if not uv.takes_needs():
        if uv.never_wheels():
            raise NoAnswer("the user's configuration of uv builds packages: nothing is built here")
        omissions, sources = omissions | sources, set()
    return _Task(content, required, day, omissions, sources, python=other_python(content.python))


def _of_one_package(content: Requirements) -> dict[str, str]:
    """The packages of an index whose requirements contradict each other, with the requirements."""
    versions = {n: those for n, those in content.versions.items() if n not in content.direct}
    return contradictions(versions, content.places)


def _solution(task: _Task, versions: Mapping[str, str], our_packages: Collection[str]) -> Solution:
    versions = {n: version for n, version in versions.items() if n not in task.omissions}
    unknown = {
        name: f"{reason}, and no index has that for this Python"
        for name, reason in task.reasons.items()
        if name in our_packages and name not in task.content.versions
    }
    for name in task.elsewhere.intersection(our_packages):
        origin = task.content.direct[name].origin
        unknown[name] = f"another package needs it, and a constraint names {origin}"
    omitted = (task.omissions & task.required.keys()) | task.elsewhere
    demanding = sorted(omitted & needs.NEEDS_ONE_RELEASE.keys())
    named = {*unknown, *task.content.versions}
    unknown |= needs.unknown_needs(demanding, our_packages, named, "was left out")
    others = sorted(task.elsewhere - needs.NEEDS_ONE_RELEASE.keys())
    named |= {*unknown, *versions}
    unknown |= needs.unknown_needs(others, our_packages, named, "was left out")
    versions = {n: version for n, version in versions.items() if n not in unknown}
    if not task.sources:
        lacking = {*our_packages}.intersection(source_only.FREQUENT) - task.content.versions.keys()
        unknown |= dict.fromkeys(sorted(lacking), NOT_LOOKED_UP)
    contested = {
        name: f"{listed(those.needs)}, and no release of it meets all requirements"
        for name, those in task.contradictions.items()
        if not str(task.limits.get(name, ""))
    }
    notes = [*_contradiction_notes(task), *_omission_notes(task)]
    if task.wanting:
        names = short(listed(task.wanting), LONGEST)
        verb = "has" if len(task.wanting) == 1 else "have"
        notes.append(f"releases for Python {task.python} were chosen, as {names} {verb} no others")
    return Solution(versions, unknown, contested, notes, task.python, is_whole=True)


def _contradiction_notes(task: _Task) -> Iterator[str]:
    """A note for each contradiction, with the requirements of the files that take part."""
    for name, places in _of_one_package(task.content).items():
        if name in task.required:
            yield f"left out, as its requirements contradict each other: {places}"
    for those in dict.fromkeys(task.contradictions.values()):
        parts = [f"{name}{task.limits[name]}" for name in those.requirements]
        reasons = "; ".join(those.needs)
        text = f"{listed(parts)} ({reasons})" if parts else reasons
        yield short(f"these requirements contradict each other: {text}", LONGEST)


def _omission_notes(task: _Task) -> Iterator[str]:
    """A note for the required omissions that have no such release, and one for those that have no
    wheel. Only those that may lack a release are looked up in the index."""
    content = task.content
    unread = task.omissions | task.sources
    omissions = (unread & content.versions.keys()) - _of_one_package(content).keys()
    doubtful = sorted(omissions & task.may_lack_release)
    without_release = [name for name in doubtful if task.has_no_release(name)]
    if without_release:
        requirements = ", ".join(f"{name}{content.versions[name]}" for name in without_release)
        when = f"was no such release on {task.day}" if task.day else "is no such release"
        yield f"there {when}, so what it needs was not looked up: {short(requirements, LONGEST)}"
    without_wheel = omissions - {*without_release} - needs.NEEDS.keys() - content.projects
    without_wheel -= content.overrides.keys()
    elsewhere = (without_wheel & content.direct.keys()) | task.elsewhere
    without_wheel -= elsewhere
    if elsewhere:
        listing = short(", ".join(sorted(elsewhere)), LONGEST)
        yield f"what these need was not looked up, as they do not come from an index: {listing}"
    if without_wheel:
        listing = short(", ".join(sorted(without_wheel)), LONGEST)
        yield f"what these need was not looked up, as no index has their wheels: {listing}"


def _as_release(line: str, *, developed: bool = False) -> str:
    """A requirement that allows every build of a release: ``torchvision==0.16.0`` for
    ``torchvision==0.16.0+cu121``. Their index need not respond, and all need the same.

    If it is ``developed``, it requires the release that a development version became.
    """
    requirement = Requirement(line)
    specifiers = []
    for specifier in requirement.specifier:
        version = public_build(specifier.version)
        if developed and _is_development(specifier):
            version = Version(version).base_version
        specifiers.append(f"{specifier.operator}{version}")
    requirement.specifier = SpecifierSet(",".join(specifiers))
    return str(requirement)


def _is_development(specifier: Specifier) -> bool:
    return specifier.operator in ("==", "===") and bool(
        re.search(r"\.dev\d+(\+|$)", specifier.version)
    )


def _extras(content: Requirements, name: str) -> str:
    """The extras of a package as a requirement has them: ``[default,tune]``, or nothing."""
    extras = ",".join(sorted(content.extras.get(name, ())))
    return f"[{extras}]" if extras else ""


def _our_minor() -> int:
    return Version(pins.here()[0]).minor


def other_python(constraint: str) -> str:
    """The oldest Python that a project is for, if it is not for ours; empty if it is for ours, or
    if the constraint is invalid."""
    try:
        specifiers = SpecifierSet(constraint)
    except InvalidSpecifier:
        return ""
    our_python, _ = pins.here()
    if specifiers.contains(f"{our_python}.99") or specifiers.contains(our_python):
        return ""
    return next((f"3.{n}" for n in range(*index.PYTHONS) if specifiers.contains(f"3.{n}.99")), "")
