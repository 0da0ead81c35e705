"""Expressions for releases, ``4.34:5.23``, ``minor``, ``0.9.5,0.10.3``; and the days of releases.

    A:B           every release from A to B, both included; B may be the beginning of several
                  (``5.23`` takes 5.23.1 as well); either may be left out
    all           every release
    minor         the last patch of each minor release; also of a range: ``4.34:5.23:minor``
    A,B,...       these, and any of the above

No range contains yanked releases or pre-releases. ``pins.torch=installed`` is the installed torch.
Days are ISO dates: the day of a release, and the day that its dependencies are resolved for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.bugs import pins
from harness.bugs.api.spec import Scenario
from harness.bugs.pins import Stack, here, is_source
from harness.releases import index, locks, sources, torches, uv
from harness.system.errors import Fault, Inconclusive, UserError
from harness.system.files import write_whole, writing
from harness.system.machine import cache_folder
from harness.system.text import warn_once

MINOR = "minor"
ALL = "all"


def is_one(expression: str) -> bool:
    """Whether an expression names a single release."""
    return not any(sign in expression for sign in ",:") and expression not in (ALL, MINOR)


def chosen(name: str, expression: str) -> list[str]:
    """The releases of a package that an expression selects, oldest first.

    Raises UserError for a range without releases, and for a release that does not exist or was
    yanked. Without a network a single release is not checked: a bundle may contain it.
    """
    if (name, expression) == (pins.TORCH, torches.INSTALLED) and (release := torches.installed()):
        return [release]
    if sources.is_one(expression):
        return [sources.pinned(name, expression, cache_folder())]
    terms = [term.strip() for term in expression.split(",")]
    try:
        releases = published(name)
    except Inconclusive:
        if not all(is_one(term) for term in terms):
            raise
        return [pins.spelt(version) for version in sorted({_version(name, t) for t in terms})]
    picked = {version for term in terms for version in _term(name, term, releases)}
    return sorted(picked, key=Version)


def published(name: str) -> list[str]:
    """Every release of a package for any Python, oldest first; no yanked or pre-releases."""
    versions = [r.version for r in index.releases(name) if r.final and not r.yanked]
    if not versions:
        raise Fault(f"the package index has no release of {name} that is final and not yanked")
    return versions


def _term(name: str, term: str, releases: Sequence[str]) -> list[str]:
    bounds, _, step = term.rpartition(":") if term.endswith(f":{MINOR}") else (term, "", "")
    if bounds in (ALL, MINOR):
        bounds, step = ":", MINOR if bounds == MINOR else step
    if ":" not in bounds:
        return [_release(name, bounds, releases)]
    low, _, high = bounds.partition(":")
    picked = [v for v in releases if _between(name, v, low.strip(), high.strip())]
    if not picked:
        span = f"releases go from {releases[0]} to {releases[-1]}"
        raise UserError(f"pins.{name}={term}: no release of {name} is in this range: {span}")
    return list({Version(v).release[:2]: v for v in picked}.values()) if step else picked


def _release(name: str, word: str, releases: Sequence[str]) -> str:
    version = _version(name, word)
    for release in releases:
        if Version(release) == version:
            return release
    raise UserError(index.no_release(name, word))


def _between(name: str, release: str, low: str, high: str) -> bool:
    version = Version(release)
    if low and version < _version(name, low):
        return False
    if not high:
        return True
    end = _version(name, high)
    return version <= end or version.release[: len(end.release)] == end.release


def _version(name: str, word: str) -> Version:
    try:
        return Version(word)
    except InvalidVersion:
        raise UserError(
            f"pins.{name}: '{word}' is not a version. Choices: a version (0.15.4), a range "
            f"(0.15:0.19), a list of these, {ALL}, {MINOR} (also 0.15:0.19:{MINOR})"
        ) from None


GRACE = timedelta(days=21)
"""A release is resolved for the day this long after its upload: by then its dependencies had
been fixed."""

FIRST_DAY = {"3.10": "2023-12-15", "3.11": "2023-12-15", "3.12": "2023-12-15"}
LATER_PYTHONS = "2024-12-15"
"""Before these days a Python had no wheels of common dependencies (numpy, pydantic)."""


def day_of(scenario: Scenario, pins: Mapping[str, str], python: str, cache: Path) -> str:
    """The day that pins are resolved for: from their lock file, or from the subject's release."""
    if lock := locks.find(scenario.locks, pins):
        return lock.date
    return settled(released(scenario.subject, pins[scenario.subject], cache), python)


def settled(day: str, python: str) -> str:
    """The day that a release of ``day`` is resolved for; never later than today."""
    usual = (date.fromisoformat(day) + GRACE).isoformat()
    return min(max(usual, first_day(python)), date.today().isoformat())


def first_day(python: str) -> str:
    """The first day on which a Python had wheels of common dependencies."""
    return FIRST_DAY.get(python, LATER_PYTHONS)


def released(name: str, version: str, cache: Path) -> str:
    """The day a release was uploaded, from the cache or from the index, then cached.

    Raises UserError for a version that is not spelt as its release, and Inconclusive if the index
    does not name the day.
    """
    if is_source(version):
        return sources.of(name, version, cache).day
    file = release_file(cache, name, version)
    if day := _cached(file):
        return day
    stack = Stack({name: version}, date.today().isoformat(), *here())
    stack = next(part for part in pins.by_python(stack) if part.pins)
    words = ["pip", "compile", "-", "--no-deps", "--format", "pylock.toml"]
    words += [*uv.target(stack), *uv.build_options()]
    with index.waiting(f"the package index, which knows when {name} {version} was released"):
        lock = uv.run(words, stdin=f"{name}=={version}\n", pins={name: version})
    spelling = re.search(r'^version = "(.+)"$', lock, flags=re.MULTILINE)
    if spelling and spelling[1] != version:  # it would not equal the version that a rank imports
        raise UserError(
            f"pins.{name}={version}: write it as its release is spelt, pins.{name}={spelling[1]}"
        )
    days = re.findall(r"upload-time = (\d{4}-\d\d-\d\d)", lock)
    if not days:
        raise Inconclusive(
            f"the index does not name the day {name} {version} was released: set date="
        )
    with writing(file, "HARNESS_CACHE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"released": min(days)}) + "\n")
    return min(days)


def _cached(file: Path) -> str | None:
    """The day in a file of the cache; None if there is no valid one."""
    try:
        day = json.loads(file.read_text(encoding="utf-8"))["released"]
        if date.fromisoformat(day).isoformat() == day:
            return str(day)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    warn_once(f"{file} was damaged or edited: the day is requested from the index again")
    return None


def release_file(cache: Path, name: str, version: str) -> Path:
    """The file of the cache with the day of a release."""
    return cache / "releases" / f"{name}-{version}.json"
