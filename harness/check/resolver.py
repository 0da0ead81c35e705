"""The releases that a resolver would install for requirements, found by uv. Nothing is installed.

Nothing is built, either. A package that uv cannot use, as there is no wheel for this Python or no
such release, is an *omission*: uv is told to leave it out, and what it needs is not looked up. If
the requirements contradict each other, those of the files count (see ``solver``). A package that
may be needed in this way is *unknown*, not absent.

uv does not read the files themselves: it could do that for 4 of 21 projects. It refuses a file for
one package without a wheel, clones the repositories that a file names, and knows neither Poetry's
tables nor conda's. So it gets the names and the versions that ``requirements`` has read.
"""

from __future__ import annotations

from collections.abc import Collection

from harness.bugs.result_file import tested_releases
from harness.check import resolution_store, solver
from harness.check.contradictions import conditions
from harness.check.installed import DEPENDENCY, Exact, Installed, NewestOf, Unknown, described
from harness.check.needs import unknown_needs
from harness.check.problem import other_python
from harness.check.requirements import Requirements, exact
from harness.check.resolution_store import Resolution
from harness.check.solver import NoAnswer, NotResolved, Solution
from harness.releases import index
from harness.system.errors import Fault, UserError
from harness.system.text import listed, warn_once


def resolve(content: Requirements, our_packages: Collection[str], day: str = "") -> Resolution:
    """Which of our packages these requirements install, as of the end of a day (ISO).

    The packages that requirements name exactly are not among them. The same requirements are
    resolved once a day. Raises UserError for a package of which no release is allowed.
    """
    if content.no_index:
        note = "--no-index forbids to look up what packages need"
        solution = _empty_solution(content, our_packages, note)
        return _resolution(content, our_packages, day, solution)
    key = [
        [*solver.first_problem(content, day).uv_input()],
        sorted(our_packages),
        {name: package.version for name, package in content.direct.items()},
        [sorted(content.projects), content.indices, content.links],
        {name: [*map(str, those)] for name, those in content.places.items()},
    ]
    resolution = resolution_store.read(key)
    if resolution is None:
        solution = _solve(content, our_packages, day)
        resolution = _resolution(content, our_packages, day, solution)
        resolution_store.write(key, resolution)
    return resolution


def _resolution(
    content: Requirements, our_packages: Collection[str], day: str, solution: Solution
) -> Resolution:
    """uv's solution as a Resolution. A package that a file names and that the solution lacks gets
    the newest release that is allowed."""
    packages: dict[str, Installed] = {name: Unknown(why) for name, why in solution.unknown.items()}
    notes, is_repeatable = list(solution.notes), solution.is_whole and not content.links
    for name in our_packages:
        if exact(name, content):
            packages.pop(name, None)
        elif name in solution.contested:
            packages[name] = Unknown(solution.contested[name])
        elif name in solution.versions:
            specifiers = content.versions.get(name)
            newest_of = DEPENDENCY if specifiers is None else f"{name}{specifiers}"
            release = described(solution.versions[name])
            is_release = isinstance(release, Exact)
            packages[name] = NewestOf(release.version, newest_of) if is_release else release
        elif name in content.versions:
            packages[name], note = newest(name, content, day)
            notes += [note] if note else []
            is_repeatable = is_repeatable and not note and bool(packages[name].version)
    unnamed = solution.unknown.keys() - content.versions.keys()
    unsettled = solution.contested.keys() & packages.keys()
    if unsaid := sorted({*unnamed, *(n for n in unsettled if not packages[n].version)}):
        notes.insert(0, f"not known: the releases of {listed(unsaid)}")
    return Resolution(packages, tuple(notes), is_repeatable, solution.python)


def newest(name: str, content: Requirements, day: str = "") -> tuple[Installed, str]:
    """The newest release that requirements allow, as of the end of a day (ISO), and a note for the
    user, usually empty.

    - If no index can be read, it is the newest tested release, and the note says so.
    - If no release is known that may be allowed, the version is empty, and ``origin`` says why.
    - If releases are known and none is allowed, or if there may be no index: raises UserError.
    """
    specifiers = content.versions[name]
    if content.no_index:
        raise UserError(
            f"--no-index: no index can list the releases of {name}; name one, such as {name}==1.2.3"
        )
    if content.links:
        warn_once("--find-links is ignored: a range selects the index's newest release")
    until = f" until {day}" if day else ""
    try:
        releases = index.installable(name, day, content.indices)
        candidates, note = [release.version for release in releases], ""
    except Fault as fault:
        candidates = list(tested_releases(name))
        if not any(specifiers.filter(candidates)):
            return Unknown(str(fault)), ""
        note = f"{name}: the newest tested release is taken, as no index could be read ({fault})"
    if not candidates:
        return Unknown(f"the index has no release of it for this Python{until}"), ""
    allowed_versions = list(specifiers.filter(candidates))
    if not allowed_versions:
        raise UserError(
            f"no release{until} is {conditions(name, content.places[name])}: they go from "
            f"{candidates[0]} to {candidates[-1]}"
        )
    return NewestOf(allowed_versions[-1], f"{name}{specifiers}"), note


def _solve(content: Requirements, our_packages: Collection[str], day: str) -> Solution:
    """The solution of uv; if it has none, nothing but a note that says why."""
    try:
        return solver.choose_versions(content, our_packages, day)
    except NoAnswer as error:
        note = f"what packages need was not looked up, so each is looked up alone: {error}"
    except NotResolved as error:
        note = f"no releases were found that fit together, so each is looked up alone: {error}"
    return _empty_solution(content, our_packages, note)


def _empty_solution(content: Requirements, our_packages: Collection[str], note: str) -> Solution:
    """The solution if uv chose no releases: what is unknown, and a note that says why."""
    unknown = unknown_needs(content.versions, our_packages, (), "could not be resolved")
    return Solution(unknown=unknown, notes=[note], python=other_python(content.python))
