"""The releases that a resolver would install for requirements, found by uv. Nothing is installed.

Nothing is built, either: a package without a wheel for this Python is left out, and what it needs
is not looked up. If the requirements contradict each other, what they need is not looked up. A
package that may be needed in this way is *unknown*, not absent.

uv does not read the files themselves: it could do that for 4 of 21 projects. It refuses a file for
one package without a wheel, clones the repositories that a file names, and knows neither Poetry's
tables nor conda's. So it gets the names and the versions that ``requirements`` has read.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

from harness.bugs.pins import here
from harness.bugs.result_file import tested_releases
from harness.check import resolution_store
from harness.check.installed import DEPENDENCY, Installed, described
from harness.check.requirements import Requirements, exact
from harness.check.resolution_store import Resolution
from harness.releases import index, locks, uv
from harness.system.errors import Fault, UserError
from harness.system.text import listed, one_line, short, warn_once

LONGEST = 300
"""Characters of a list of packages in a line."""
TRIES = 100
"""How often packages without wheels, or that no index has, are left out."""
LIMIT = 90.0
"""Seconds for uv, each time."""
LEFT_OUT = ("deepspeed", "flash-attn")
"""Packages without wheels that most files name: each costs a try."""

NEEDS = {
    "accelerate": ("torch",),
    "deepspeed": ("torch",),
    "flash-attn": ("torch",),
    "heavyball": ("torch",),
    "lhotse": ("torch",),
    "lightly": ("pytorch-lightning", "torch"),
    "lightning": ("torch", "torchmetrics"),
    "litdata": ("torch",),
    "lm-eval": ("accelerate", "datasets", "peft", "torch", "transformers"),
    "megatron-core": ("torch",),
    "open-clip-torch": ("torch",),
    "peft": ("accelerate", "torch", "transformers"),
    "prodigyopt": ("torch",),
    "pytorch-ignite": ("torch",),
    "pytorch-lightning": ("torch", "torchmetrics"),
    "pytorch-metric-learning": ("torch",),
    "pytorch-optimizer": ("torch",),
    "sentence-transformers": ("torch", "transformers"),
    "torch": (),
    "torchdata": ("torch",),
    "torchmetrics": ("torch",),
    "trl": ("accelerate", "datasets", "torch", "transformers"),
    "vector-quantize-pytorch": ("torch",),
}
"""What a package needs, of those that this project knows: for a package that is left out, and where
nothing can be resolved. Any release of the last two years needs these."""

ABSENT = re.compile(r"no versions? of ([\w.-]+)")
WITHOUT = re.compile(
    r"Wheels are required for `([\w.-]+)`|"
    r"(?<![^\s`(])([\w.-]+)(?:[=<>!~]=?\S+)? has no (?:usable )?wheels|"
    rf"(?<!\S)(\S+) was not found in the package registry|{ABSENT.pattern}"
)
"""What uv says of a package that cannot be used. A search begins only where a word does, as some
words are long."""
NO_INDEX = re.compile(r"error sending request|dns error|network was disabled|Request failed")


class _NotResolved(Exception):
    """No set of releases was found; the message says why."""


@dataclass(frozen=True)
class _Solution:
    """What uv found."""

    versions: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """The packages of ours that something needs, and why their releases were not found."""
    notes: Sequence[str] = ()
    is_whole: bool = False
    """Whether all requirements fit together, so that uv would find the same again today."""


def resolve(content: Requirements, our_packages: Collection[str], day: str = "") -> Resolution:
    """Which of our packages these requirements install, as of the end of a day (ISO).

    The packages that requirements name exactly are not among them. The same requirements are
    resolved once a day. Raises UserError for a package of which no release is allowed.
    """
    if content.no_index:
        solution = _unsolved(
            content, our_packages, "--no-index forbids to look up what packages need"
        )
        return _looked_up(content, our_packages, day, solution)
    inputs = [
        [*_given_to_uv(content, content.versions, _without_wheels(content), day)],
        sorted(our_packages),
        {name: package.version for name, package in content.direct.items()},
        [sorted(content.projects), content.indices, content.links],
    ]
    resolution = resolution_store.read(inputs)
    if resolution is None:
        resolution = _looked_up(content, our_packages, day, _solved(content, our_packages, day))
        resolution_store.write(inputs, resolution)
    return resolution


def _looked_up(
    content: Requirements, our_packages: Collection[str], day: str, solution: _Solution
) -> Resolution:
    """Add what uv did not find: the newest allowed release of each package that a file names."""
    packages = {name: Installed("", why) for name, why in solution.unknown.items()}
    notes, is_repeatable = list(solution.notes), solution.is_whole and not content.links
    if unnamed := solution.unknown.keys() - content.versions.keys():
        notes.insert(0, f"not known: the releases of {listed(sorted(unnamed))}")
    for name in our_packages:
        if exact(name, content):
            packages.pop(name, None)
        elif name in solution.versions:
            specifiers = content.versions.get(name)
            newest_of = DEPENDENCY if specifiers is None else f"{name}{specifiers}"
            release = described(name, solution.versions[name])
            packages[name] = replace(release, newest_of=newest_of)
        elif name in content.versions:
            packages[name], fault = newest(name, content, day)
            notes += [fault] if fault else []
            is_repeatable = is_repeatable and not fault and bool(packages[name].version)
    return Resolution(packages, tuple(notes), is_repeatable)


def newest(name: str, content: Requirements, day: str = "") -> tuple[Installed, str]:
    """The newest release that requirements allow, as of the end of a day (ISO), and what a user
    should know of it.

    Without an index it is the newest that was tested. Raises UserError if no release is allowed.
    """
    versions = content.versions[name]
    if content.no_index:
        raise UserError(
            f"--no-index: no index can list the releases of {name}; name one, such as {name}==1.2.3"
        )
    if content.links:
        warn_once("--find-links is ignored: a range selects the index's newest release")
    until = f" until {day}" if day else ""
    try:
        released = index.installable(name, day, content.indices)
        candidates, note = [release.version for release in released], ""
    except Fault as fault:
        candidates = list(tested_releases(name))
        if not candidates:
            return Installed("", str(fault)), ""
        note = f"{name}: the newest tested release is taken, as no index could be read ({fault})"
    if not candidates:
        return Installed("", f"the index has no release of it for this Python{until}"), ""
    fits = list(versions.filter(candidates))
    if not fits:
        requirement = short(f"{name}{versions}", 200)
        raise UserError(
            f"no release{until} is {requirement}: they go from {candidates[0]} to {candidates[-1]}"
        )
    return Installed(fits[-1], newest_of=f"{name}{versions}"), note


def _solved(content: Requirements, our_packages: Collection[str], day: str) -> _Solution:
    """The solution of uv. If the requirements contradict each other, those of our packages are
    tried without the others."""
    try:
        versions, notes = _versions(content, content.versions, day)
        return _Solution(versions, {}, notes, is_whole=True)
    except _NotResolved as error:
        why = str(error)
    if "index" not in why:
        our_requirements = {
            name: specifiers
            for name, specifiers in content.versions.items()
            if name in our_packages
        }
        if our_requirements.keys() < content.versions.keys():
            try:
                versions, notes = _versions(content, our_requirements, day)
                others = content.versions.keys() - our_requirements.keys()
                unknown = _needed(others, our_packages, versions, "was left out")
                names = listed(sorted(our_requirements))
                note = f"the other requirements contradict {names}, and were left out: {why}"
                return _Solution(versions, unknown, [note, *notes])
            except _NotResolved as error:
                why = str(error)
    note = f"no releases were found that fit together, so each is looked up alone: {why}"
    return _unsolved(content, our_packages, note)


def _unsolved(content: Requirements, our_packages: Collection[str], note: str) -> _Solution:
    """The solution if no releases were found: what is unknown, and a note that says why."""
    needed = _needed(content.versions, our_packages, (), "could not be resolved")
    return _Solution({}, needed, [note])


def _not_looked_up(
    content: Requirements, left_out: set[str], absent: set[str], day: str
) -> Iterator[str]:
    """A line for the packages that have no such release, and one for those without a wheel.

    Only ``absent`` packages may have no release.
    """
    gone = {name for name in left_out & absent if _has_no_release(name, content, day)}
    if gone:
        requirements = ", ".join(f"{name}{content.versions[name]}" for name in sorted(gone))
        when = f"was no such release on {day}" if day else "is no such release"
        yield f"there {when}, so what it needs was not looked up: {short(requirements, LONGEST)}"
    if unread := ", ".join(sorted(left_out - gone - NEEDS.keys() - content.projects)):
        names = short(unread, LONGEST)
        yield f"what these need was not looked up, as no index has their wheels: {names}"


def _has_no_release(name: str, content: Requirements, day: str) -> bool:
    """Whether the index has no release that requirements allow, or had none on a day (ISO).

    A version with a label is from another index, which the file need not name.
    """
    specifiers = content.versions[name]
    if name in content.direct or "+" in str(specifiers):
        return False
    if not day and any(specifiers.contains(tested) for tested in tested_releases(name)):
        return False
    try:
        releases = index.releases(name, content.indices)
    except Fault:
        return False
    versions = (release.version for release in releases if not (day and release.day > day))
    return not any(specifiers.contains(version, prereleases=True) for version in versions)


def _needed(
    names: Iterable[str], our_packages: Collection[str], versions: Collection[str], why: str
) -> dict[str, str]:
    """Our packages that ``names`` need and that have no version, each with the reason."""
    needed: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for package in NEEDS.get(name, ()):
            if package not in versions and package not in needed:
                waiting.append(package)
                if package in our_packages:
                    needed[package] = f"{name} needs it, and {name} {why}"
    return needed


def _versions(
    content: Requirements, required: Mapping[str, SpecifierSet], day: str
) -> tuple[dict[str, str], list[str]]:
    """The versions, and notes for the user about the packages that were left out. Raises
    _NotResolved if the requirements contradict each other, or if no index responds."""
    absent, left_out = set(LEFT_OUT), _without_wheels(content)
    for _ in range(TRIES):
        solution, errors = _compiled(content, required, left_out, day)
        if solution is not None:
            versions = {name: version for name, version in solution.items() if name not in left_out}
            omissions = left_out & content.versions.keys()
            return versions, list(_not_looked_up(content, omissions, absent, day))
        if NO_INDEX.search(errors):
            raise _NotResolved("the package index does not respond")
        unusable = set(_unusable(errors)) - left_out
        if not unusable:
            break
        left_out |= unusable
        absent |= unusable & set(_unusable(errors, ABSENT))
    raise _NotResolved(short(one_line(errors.removeprefix("error: ")), 300))


def _unusable(errors: str, saying: re.Pattern[str] = WITHOUT) -> Iterator[str]:
    """The packages that uv cannot use, according to its errors."""
    for match in saying.finditer(errors):
        with suppress(InvalidName):
            name = "".join(filter(None, match.groups()))
            yield canonicalize_name(name.strip("`.,"), validate=True)


def _without_wheels(content: Requirements) -> set[str]:
    """The packages that no index can have a wheel of; uv finds out which others there are."""
    return {*LEFT_OUT, *(n for n, package in content.direct.items() if not package.version)}


def _compiled(
    content: Requirements, required: Mapping[str, SpecifierSet], left_out: set[str], day: str
) -> tuple[Mapping[str, str] | None, str]:
    """The versions that ``uv pip compile`` chooses, or None and its errors."""
    words, stdin, lists = _given_to_uv(content, required, left_out, day)
    try:
        process = uv.execute(words, stdin, {"UV_HTTP_RETRIES": "1"}, lists, LIMIT)
    except subprocess.TimeoutExpired:
        return None, f"uv did not answer within {LIMIT:.0f} s"
    if process.returncode:
        return None, " ".join(process.stderr.split())
    printed = (line.partition(";")[0].strip() for line in process.stdout.splitlines())
    return locks.versions("\n".join(line for line in printed if "==" in line)), ""


def _given_to_uv(
    content: Requirements, required: Mapping[str, SpecifierSet], left_out: set[str], day: str
) -> tuple[list[str], str, dict[str, list[str]]]:
    """The words of the command, its standard input, and the lines of its files."""
    lines = [f"{name}{_extras(content, name)}{versions}" for name, versions in required.items()]
    needed = {need for name in left_out & required.keys() for need in NEEDS.get(name, ())}
    words = [
        *("pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--no-build"),
        *((f"--exclude-newer={day}",) if day else ()),
        *((f"--default-index={content.indices[0]}",) if any(content.indices[:1]) else ()),
        *(("--python-version", python) if (python := _python(content.python)) else ()),
    ]
    stdin = "".join(f"{Requirement(line)}\n" for line in [*lines, *sorted(needed)])
    bounds = [f"{name}{specifiers}" for name, specifiers in content.bounds.items()]
    return words, stdin, {"--override": uv.left_out(left_out), "--constraint": bounds}


def _extras(content: Requirements, name: str) -> str:
    extras = ",".join(sorted(content.extras.get(name, ())))
    return f"[{extras}]" if extras else ""


def _python(constraint: str) -> str:
    """The oldest Python that a project is for, if it is not for this one; otherwise empty."""
    try:
        specifiers = SpecifierSet(constraint)
    except InvalidSpecifier:
        return ""
    ours, _ = here()
    if specifiers.contains(f"{ours}.99") or specifiers.contains(ours):
        return ""
    return next((f"3.{n}" for n in range(7, 20) if specifiers.contains(f"3.{n}.99")), "")
