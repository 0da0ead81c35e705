"""The releases that a resolver would install for requirements, found by uv. Nothing is installed.

Nothing is built, either. A package that uv cannot use, as there is no wheel for this Python or no
such release, is an *omission*: uv is told to leave it out, and what it needs is not looked up. If
the requirements contradict each other, what they need is not looked up. A package that may be
needed in this way is *unknown*, not absent.

uv does not read the files themselves: it could do that for 4 of 21 projects. It refuses a file for
one package without a wheel, clones the repositories that a file names, and knows neither Poetry's
tables nor conda's. So it gets the names and the versions that ``requirements`` has read.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

from harness.bugs import pins
from harness.bugs.result_file import tested_releases
from harness.check import resolution_store
from harness.check.installed import DEPENDENCY, Installed, described
from harness.check.requirements import Requirements, exact
from harness.check.resolution_store import Resolution
from harness.releases import index, locks, uv
from harness.system.errors import Fault, UserError
from harness.system.text import listed, one_line, short, warn_once

LONGEST = 300
"""Characters of a list of packages, or of uv's errors, in a line."""
TRIES = 100
"""How often uv is started at most: each time it names packages that it cannot use."""
LIMIT = 90.0
"""Seconds for uv, each time."""
NO_WHEELS = ("deepspeed", "flash-attn")
"""Packages without wheels that most files name: to learn it from uv costs a try for each."""

NEEDS = {
    "accelerate": ("huggingface-hub", "torch"),
    "ai2-olmo-core": ("torch",),
    "albumentations": (),
    "datasets": ("huggingface-hub",),
    "deepspeed": ("torch",),
    "diffusers": ("huggingface-hub",),
    "ema-pytorch": ("torch",),
    "fla-core": ("torch",),
    "flash-attn": ("torch",),
    "grain": (),
    "heavyball": ("torch",),
    "huggingface-hub": (),
    "keras": (),
    "lhotse": ("torch",),
    "liger-kernel": ("torch",),
    "lightly": ("pytorch-lightning", "torch"),
    "lightning": ("torch", "torchmetrics"),
    "litdata": ("torch",),
    "lm-eval": ("accelerate", "datasets", "peft", "torch", "transformers"),
    "megatron-core": ("torch",),
    "mmengine": ("torch",),
    "mosaicml": ("torch", "torchmetrics"),
    "mosaicml-streaming": ("torch", "transformers"),
    "opacus": ("torch",),
    "open-clip-torch": ("huggingface-hub", "timm", "torch"),
    "peft": ("accelerate", "huggingface-hub", "torch", "transformers"),
    "prodigyopt": ("torch",),
    "pytorch-ignite": ("torch",),
    "pytorch-lightning": ("torch", "torchmetrics"),
    "pytorch-metric-learning": ("torch",),
    "pytorch-optimizer": ("torch",),
    "sentence-transformers": ("huggingface-hub", "torch", "transformers"),
    "timm": ("huggingface-hub", "torch"),
    "torch": (),
    "torchao": ("torch",),
    "torchdata": ("torch",),
    "torchmetrics": ("torch",),
    "torchtune": ("datasets", "huggingface-hub", "torch"),
    "transformers": ("huggingface-hub",),
    "trl": ("accelerate", "datasets", "torch", "transformers"),
    "vector-quantize-pytorch": ("torch",),
    "webdataset": (),
}
"""What a package needs, of those that this project knows: for an omission, and where nothing can
be resolved. Any release of the last two years needs these."""

NO_RELEASE = re.compile(r"no versions? of ([\w.-]+)")
UNUSABLE = re.compile(
    r"Wheels are required for `([\w.-]+)`|"
    r"(?<![^\s`(])([\w.-]+)(?:[=<>!~]=?\S+)? has no (?:usable )?wheels|"
    r"(?<!\S)(\S+) was not found in the package registry"
)
"""What uv says of a package without a release that is asked for, and of one without wheels. A
search begins only where a word does, as some words are long."""
SILENT_INDEX = re.compile(r"error sending request|dns error|network was disabled|Request failed")


class _NotResolved(Exception):
    """uv chose no releases; the message says why."""


class _NoAnswer(_NotResolved):
    """The index or uv did not respond, which says nothing of the requirements."""


@dataclass(frozen=True)
class _Solution:
    """What uv chose."""

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
        note = "--no-index forbids to look up what packages need"
        solution = _empty_solution(content, our_packages, note)
        return _resolution(content, our_packages, day, solution)
    key = [
        [*_uv_input(content, content.versions, _first_omissions(content), day)],
        sorted(our_packages),
        {name: package.version for name, package in content.direct.items()},
        [sorted(content.projects), content.indices, content.links],
    ]
    resolution = resolution_store.read(key)
    if resolution is None:
        solution = _solve(content, our_packages, day)
        resolution = _resolution(content, our_packages, day, solution)
        resolution_store.write(key, resolution)
    return resolution


def _resolution(
    content: Requirements, our_packages: Collection[str], day: str, solution: _Solution
) -> Resolution:
    """uv's solution as a Resolution. A package that a file names and that the solution lacks gets
    the newest release that is allowed."""
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
            packages[name], note = newest(name, content, day)
            notes += [note] if note else []
            is_repeatable = is_repeatable and not note and bool(packages[name].version)
    return Resolution(packages, tuple(notes), is_repeatable)


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
            return Installed("", str(fault)), ""
        note = f"{name}: the newest tested release is taken, as no index could be read ({fault})"
    if not candidates:
        return Installed("", f"the index has no release of it for this Python{until}"), ""
    allowed_versions = list(specifiers.filter(candidates))
    if not allowed_versions:
        requirement = short(f"{name}{specifiers}", 200)
        raise UserError(
            f"no release{until} is {requirement}: they go from {candidates[0]} to {candidates[-1]}"
        )
    return Installed(allowed_versions[-1], newest_of=f"{name}{specifiers}"), note


def _solve(content: Requirements, our_packages: Collection[str], day: str) -> _Solution:
    """The solution of uv. If the requirements contradict each other, those of our packages are
    tried without the others."""
    try:
        versions, notes = _choose_versions(content, content.versions, day)
        return _Solution(versions, {}, notes, is_whole=True)
    except _NoAnswer as error:
        note = f"what packages need was not looked up, so each is looked up alone: {error}"
        return _empty_solution(content, our_packages, note)
    except _NotResolved as error:
        contradiction = str(error)
    our_requirements = {
        name: specifiers for name, specifiers in content.versions.items() if name in our_packages
    }
    other_names = content.versions.keys() - our_requirements.keys()
    if other_names:
        try:
            versions, notes = _choose_versions(content, our_requirements, day)
            unknown = _unknown_needs(other_names, our_packages, versions, "was left out")
            names = listed(sorted(our_requirements))
            note = f"the other requirements contradict {names}, and were left out: {contradiction}"
            return _Solution(versions, unknown, [note, *notes])
        except _NotResolved as error:
            contradiction = str(error)
    note = f"no releases were found that fit together, so each is looked up alone: {contradiction}"
    return _empty_solution(content, our_packages, note)


def _empty_solution(content: Requirements, our_packages: Collection[str], note: str) -> _Solution:
    """The solution if uv chose no releases: what is unknown, and a note that says why."""
    unknown = _unknown_needs(content.versions, our_packages, (), "could not be resolved")
    return _Solution({}, unknown, [note])


def _unknown_needs(
    names: Iterable[str], our_packages: Collection[str], versions: Collection[str], why: str
) -> dict[str, str]:
    """Our packages that ``names`` need, also indirectly, and that ``versions`` lacks, each with the
    reason: what needs it, and ``why`` that says nothing."""
    unknown: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for need in NEEDS.get(name, ()):
            if need not in versions and need not in unknown:
                waiting.append(need)
                if need in our_packages:
                    unknown[need] = f"{name} needs it, and {name} {why}"
    return unknown


def _choose_versions(
    content: Requirements, required: Mapping[str, SpecifierSet], day: str
) -> tuple[dict[str, str], list[str]]:
    """The versions that uv chooses, and notes for the user about the omissions.

    uv stops at a package that it cannot use and names it: it is started again without that one,
    until it chooses. Raises _NotResolved if the requirements contradict each other, and _NoAnswer
    if the index or uv does not respond.
    """
    omissions, may_lack_release = _first_omissions(content), set(NO_WHEELS)
    for _ in range(TRIES):
        versions, errors = _compile(content, required, omissions, day)
        if versions is not None:
            chosen_versions = {n: version for n, version in versions.items() if n not in omissions}
            return chosen_versions, list(_omission_notes(content, omissions, may_lack_release, day))
        if SILENT_INDEX.search(errors):
            raise _NoAnswer("the package index does not respond")
        without_release = set(_without_release(errors, required)) - omissions
        unusable = {*_named_packages(UNUSABLE, errors), *without_release} - omissions
        if not unusable:
            break
        omissions |= unusable
        may_lack_release |= without_release
    raise _NotResolved(short(one_line(errors.removeprefix("error: ")), LONGEST))


def _first_omissions(content: Requirements) -> set[str]:
    """The packages that no index can have a wheel of; uv finds out which others there are."""
    return {*NO_WHEELS, *(n for n, package in content.direct.items() if not package.version)}


def _without_release(errors: str, required: Collection[str]) -> Iterator[str]:
    """The packages that have no such release, according to uv's errors.

    A package that is required, too, has others. If only what another package needs is missing, the
    requirements contradict each other: ``there is no version of down==7 and up==3 depends on it``.
    """
    for name in _named_packages(NO_RELEASE, errors):
        if name not in required or re.search(rf"you require {re.escape(name)}(?![\w.-])", errors):
            yield name


def _named_packages(pattern: re.Pattern[str], errors: str) -> Iterator[str]:
    """The packages that uv names in this way in its errors."""
    for match in pattern.finditer(errors):
        with suppress(InvalidName):
            name = "".join(filter(None, match.groups()))
            yield canonicalize_name(name.strip("`.,"), validate=True)


def _omission_notes(
    content: Requirements, omissions: Set[str], may_lack_release: Set[str], day: str
) -> Iterator[str]:
    """A note for the required omissions that have no such release, and one for those that have no
    wheel. Only those in ``may_lack_release`` are looked up in the index."""
    omissions = omissions & content.versions.keys()
    without_release = {
        name for name in omissions & may_lack_release if _has_no_release(name, content, day)
    }
    if without_release:
        requirements = ", ".join(
            f"{name}{content.versions[name]}" for name in sorted(without_release)
        )
        when = f"was no such release on {day}" if day else "is no such release"
        yield f"there {when}, so what it needs was not looked up: {short(requirements, LONGEST)}"
    without_wheel = omissions - without_release - NEEDS.keys() - content.projects
    without_wheel -= content.overrides.keys()
    if without_wheel:
        listing = short(", ".join(sorted(without_wheel)), LONGEST)
        yield f"what these need was not looked up, as no index has their wheels: {listing}"


def _has_no_release(name: str, content: Requirements, day: str) -> bool:
    """Whether the index certainly has no release that requirements allow, or had none on a day
    (ISO).

    Not certain, so False: the package comes from an address; its version has a label, which is
    from another index that the file need not name; or the index does not respond.
    """
    specifiers = content.versions[name]
    if name in content.direct or "+" in str(specifiers):
        return False
    if not day and any(specifiers.contains(version) for version in tested_releases(name)):
        return False
    try:
        releases = index.releases(name, content.indices)
    except Fault:
        return False
    published = (release.version for release in releases if not (day and release.day > day))
    return not any(specifiers.contains(version, prereleases=True) for version in published)


def _compile(
    content: Requirements, required: Mapping[str, SpecifierSet], omissions: Set[str], day: str
) -> tuple[Mapping[str, str] | None, str]:
    """The versions that ``uv pip compile`` chooses, or None and its errors. Raises _NoAnswer if uv
    takes too long."""
    command, stdin, files = _uv_input(content, required, omissions, day)
    try:
        process = uv.execute(command, stdin, {"UV_HTTP_RETRIES": "1"}, files, LIMIT)
    except subprocess.TimeoutExpired:
        raise _NoAnswer(f"uv did not answer within {LIMIT:.0f} s") from None
    if process.returncode:
        return None, " ".join(process.stderr.split())
    lines = (line.partition(";")[0].strip() for line in process.stdout.splitlines())
    return locks.versions("\n".join(line for line in lines if "==" in line)), ""


def _uv_input(
    content: Requirements, required: Mapping[str, SpecifierSet], omissions: Set[str], day: str
) -> tuple[list[str], str, dict[str, list[str]]]:
    """The words of the command, its standard input, and the lines of its files.

    An override leaves an omission out; what it needs, as far as ``NEEDS`` says, is required.
    """
    lines = [f"{name}{_extras(content, name)}{versions}" for name, versions in required.items()]
    needs = {need for name in omissions & required.keys() for need in NEEDS.get(name, ())}
    command = [
        *("pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--no-build"),
        *((f"--exclude-newer={day}",) if day else ()),
        *((f"--default-index={content.indices[0]}",) if any(content.indices[:1]) else ()),
        *(("--python-version", python) if (python := _other_python(content.python)) else ()),
    ]
    stdin = "".join(f"{Requirement(line)}\n" for line in [*lines, *sorted(needs)])
    bounds = [f"{name}{specifiers}" for name, specifiers in content.bounds.items()]
    overrides = [
        line for name, those in content.overrides.items() if name not in omissions for line in those
    ]
    lists = {"--override": [*uv.left_out(omissions), *overrides], "--constraint": bounds}
    return command, stdin, lists


def _extras(content: Requirements, name: str) -> str:
    """The extras of a package as a requirement has them: ``[default,tune]``, or nothing."""
    extras = ",".join(sorted(content.extras.get(name, ())))
    return f"[{extras}]" if extras else ""


def _other_python(constraint: str) -> str:
    """The oldest Python that a project is for, if it is not for ours; empty if it is for ours, or
    if the constraint is invalid."""
    try:
        specifiers = SpecifierSet(constraint)
    except InvalidSpecifier:
        return ""
    our_python, _ = pins.here()
    if specifiers.contains(f"{our_python}.99") or specifiers.contains(our_python):
        return ""
    return next((f"3.{n}" for n in range(7, 20) if specifiers.contains(f"3.{n}.99")), "")
