"""Has uv choose releases that fit together. It explains in prose why it cannot, which is not read:
a walk through the index's metadata finds the obstacles, and uv tries again without them.

- A package without a wheel for this Python, or without such a release, is left out. All others
  still constrain each other. What pip would build is chosen nevertheless.
- If a package needs another release of something than the files name, the files' own requirement
  replaces what the package needs: ``vllm==0.8.4`` needs torch 2.6.0, and the file has 2.5.1.
- If two packages need different releases of something that no file names, its release is unknown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.bugs.result_file import tested_releases
from harness.check import needs
from harness.check.contradictions import contradictions
from harness.check.problem import OFTEN_SOURCE, Problem, other_python
from harness.check.requirements import Requirements
from harness.check.walk import Pages, Walk, settled
from harness.releases import index, index_pages, uv
from harness.system.errors import Fault
from harness.system.text import listed, one_line, short

LONGEST = 300
"""Characters of a list of packages, or of uv's errors, in a line."""
STARTS = 3
"""How often uv is started at most for a file."""
LIMIT = 90.0
"""Seconds for uv, each time."""
UNEXPECTED = 2
"""The exit code of uv for anything but requirements that it cannot meet."""
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


@dataclass(frozen=True)
class _Choice:
    """The releases that uv chose, and which of them need which."""

    versions: Mapping[str, str]
    via: Mapping[str, Sequence[str]]


def choose_versions(content: Requirements, our_packages: Collection[str], day: str) -> Solution:
    """The versions that uv chooses, and notes for the user about what was removed.

    Raises NotResolved if nobody understands why uv chooses none, and NoAnswer if the index or uv
    does not respond.
    """
    try:
        problem = settled(first_problem(content, day))
        for start in range(STARTS):
            choice, error = _compile(problem)
            if choice:
                changed, old = _after_choice(problem, choice, our_packages)
                if changed == problem or start == STARTS - 1:
                    return _solution(problem, choice.versions, our_packages, old)
            else:
                changed = Walk(problem).of_refusal().of(problem, all_of_them=start > 0)
                if changed == problem:
                    break
            problem = changed
    except index_pages.NoNetwork:
        raise NoAnswer("the package index does not respond") from None
    raise NotResolved(short(one_line(error.removeprefix("error: ")), LONGEST))


def _after_choice(
    problem: Problem, choice: _Choice, our_packages: Collection[str]
) -> tuple[Problem, Mapping[str, set[str]]]:
    """The problem without what uv was not able to look at, and the packages whose old releases it
    chose therefore."""
    direct = {n for n, package in problem.content.direct.items() if not package.version}
    elsewhere = (direct & choice.versions.keys()) - problem.content.versions.keys()
    problem = replace(
        problem,
        elsewhere=problem.elsewhere | elsewhere,
        omissions={**problem.omissions, **dict.fromkeys(elsewhere, "")},
    )
    if not problem.sources:  # the user's configuration does not allow it
        return problem, {}
    names = {*problem.required, *our_packages} - elsewhere
    old = Walk(problem).of_solution(choice.versions, choice.via, names)
    sources = problem.sources.union(*old.values())
    return replace(problem, sources=sources), old


def _compile(problem: Problem) -> tuple[_Choice | None, str]:
    """What ``uv pip compile`` chooses, or None and its errors. Raises NoAnswer if uv takes too
    long, and NoNetwork if the index does not respond."""
    command, stdin, lists = problem.uv_input()
    sources = sorted(problem.sources - problem.omissions.keys())
    needed = {n: needs.NEEDS.get(n, ()) for n in sources} if problem.sources else None
    try:
        process = uv.execute(command, stdin, {"UV_HTTP_RETRIES": "1"}, lists, LIMIT, needed)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"uv did not answer within {LIMIT:.0f} s") from None
    if process.returncode == UNEXPECTED:
        Pages(problem).read(problem.required)
        raise NoAnswer(short(one_line(process.stderr.removeprefix("error: ")), LONGEST))
    if process.returncode:
        return None, process.stderr
    versions, via = dict[str, str](), dict[str, Sequence[str]]()
    for line in filter(None, map(str.strip, process.stdout.splitlines())):
        text, _, dependents = line.partition("# via ")
        requirement = Requirement(text.strip())
        name = canonicalize_name(requirement.name)
        versions[name] = next(iter(requirement.specifier)).version
        via[name] = dependents.split(", ")
    return _Choice(versions, via), ""


def first_problem(content: Requirements, day: str) -> Problem:
    """The requirements without what no index has, and without what contradicts itself; what else
    uv cannot choose is found out later. The same problem has the same answer."""
    omissions = {
        *(
            n
            for n in content.versions.keys() & content.direct.keys()
            if not content.direct[n].version
        ),
        *_of_one_package(content),
    }
    sources = {*OFTEN_SOURCE, *uv.never_wheels()}
    if not uv.takes_needs():
        if uv.never_wheels():
            raise NoAnswer("the user's configuration of uv builds packages: nothing is built here")
        omissions, sources = omissions | sources, set()
    return Problem(
        content,
        content.versions,
        day,
        dict.fromkeys(sorted(omissions), ""),
        frozenset(sources),
        python=other_python(content.python),
    )


def _of_one_package(content: Requirements) -> dict[str, str]:
    """The packages of an index whose requirements contradict each other, with the requirements."""
    versions = {n: those for n, those in content.versions.items() if n not in content.direct}
    return contradictions(versions, content.places)


def _solution(
    problem: Problem,
    versions: Mapping[str, str],
    our_packages: Collection[str],
    old: Mapping[str, set[str]],
) -> Solution:
    content, omissions = problem.content, problem.omissions
    unknown = {
        name: f"{reason or 'another package needs it'}, and no index has that for this Python"
        for name, reason in omissions.items()
        if name in our_packages and name not in content.versions
        if reason
    }
    for name, sources in old.items():
        if name in our_packages and sources - problem.sources:
            unknown[name] = f"{listed(sorted(sources))} has no wheel, and a newer one may need it"
    for name in problem.elsewhere.intersection(our_packages):
        origin = content.direct[name].origin
        unknown[name] = f"another package needs it, and a constraint names {origin}"
    omitted = (omissions.keys() & problem.required.keys()) | problem.elsewhere
    demanding = sorted(omitted & needs.NEEDS_ONE_RELEASE.keys())
    named = {*unknown, *content.versions}
    unknown |= needs.unknown_needs(demanding, our_packages, named, "was left out")
    others = sorted(problem.elsewhere - needs.NEEDS_ONE_RELEASE.keys())
    named |= {*unknown, *versions}
    unknown |= needs.unknown_needs(others, our_packages, named, "was left out")
    versions = {n: version for n, version in versions.items() if n not in unknown}
    if not problem.sources:
        lacking = {*our_packages}.intersection(OFTEN_SOURCE) - content.versions.keys()
        unknown |= dict.fromkeys(sorted(lacking), NOT_LOOKED_UP)
    contested = {
        name: f"{listed(those.needs)}, and no release of it meets all requirements"
        for name, those in problem.contradictions.items()
        if not str(problem.limits.get(name, ""))
    }
    notes = [*_contradiction_notes(problem), *_omission_notes(problem)]
    if problem.wanting:
        names = short(listed(problem.wanting), LONGEST)
        verb = "has" if len(problem.wanting) == 1 else "have"
        notes.append(
            f"releases for Python {problem.python} were chosen, as {names} {verb} no others"
        )
    return Solution(versions, unknown, contested, notes, problem.python, is_whole=True)


def _contradiction_notes(problem: Problem) -> Iterator[str]:
    """A note for each contradiction, with the requirements of the files that take part."""
    for places in _of_one_package(problem.content).values():
        yield f"left out, as its requirements contradict each other: {places}"
    for _, those in sorted(problem.contradictions.items()):
        parts = [f"{name}{problem.content.versions.get(name, '')}" for name in those.requirements]
        reasons = "; ".join(those.needs)
        text = f"{listed(parts)} ({reasons})" if parts else reasons
        yield short(f"these requirements contradict each other: {text}", LONGEST)


def _omission_notes(problem: Problem) -> Iterator[str]:
    """A note for the required omissions that have no such release, and one for those that have no
    wheel."""
    content = problem.content
    unread = problem.omissions.keys() | problem.sources
    omissions = (unread & content.versions.keys()) - _of_one_package(content).keys()
    without_release = [name for name in sorted(omissions) if _has_no_release(problem, name)]
    if without_release:
        requirements = ", ".join(f"{name}{content.versions[name]}" for name in without_release)
        when = f"was no such release on {problem.day}" if problem.day else "is no such release"
        yield f"there {when}, so what it needs was not looked up: {short(requirements, LONGEST)}"
    without_wheel = omissions - {*without_release} - needs.NEEDS.keys() - content.projects
    without_wheel -= content.overrides.keys()
    elsewhere = (without_wheel & content.direct.keys()) | problem.elsewhere
    without_wheel -= elsewhere
    if elsewhere:
        listing = short(", ".join(sorted(elsewhere)), LONGEST)
        yield f"what these need was not looked up, as they do not come from an index: {listing}"
    if without_wheel:
        listing = short(", ".join(sorted(without_wheel)), LONGEST)
        yield f"what these need was not looked up, as no index has their wheels: {listing}"


def _has_no_release(problem: Problem, name: str) -> bool:
    """Whether the index certainly has no release that requirements allow, or had none on the day.

    Not certain, so False: the package comes from an address; its version has a label, which is
    from another index that the file need not name; or the index does not respond.
    """
    content = problem.content
    specifiers = content.versions[name]
    if name in content.direct or "+" in str(specifiers):
        return False
    if not problem.day and any(map(specifiers.contains, tested_releases(name))):
        return False
    try:
        releases = index.releases(name, content.indices)
    except Fault:
        return False
    published = (r.version for r in releases if not (problem.day and r.day > problem.day))
    return not any(specifiers.contains(version, prereleases=True) for version in published)
