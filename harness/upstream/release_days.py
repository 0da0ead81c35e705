"""The day of a release, and the day that its dependencies are resolved for. Days are ISO dates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path

from harness.api.spec import Scenario
from harness.system.errors import Inconclusive, UserError
from harness.system.files import write_whole, writing
from harness.system.text import warn_once
from harness.upstream import index, locks, quirks, sources, uv
from harness.upstream.pins import Stack, here, is_source

GRACE = timedelta(days=21)
"""A release is resolved for the day this long after its upload: by then its dependencies had
been fixed."""

FIRST_DAY = {"3.10": "2023-12-15", "3.11": "2023-12-15", "3.12": "2023-12-15"}
LATER_PYTHONS = "2024-12-15"
"""Before these days a Python had no wheels of common dependencies (numpy, pydantic)."""


def day_of(scenario: Scenario, pins: Mapping[str, str], python: str, cache: Path) -> str:
    """The day that pins are resolved for: from their lock file, or from the subject's release."""
    if day := locked_day(scenario, pins):
        return day
    return settled(released(scenario.subject, pins[scenario.subject], cache), python)


def locked_day(scenario: Scenario, pins: Mapping[str, str]) -> str | None:
    """The day that the lock file of these pins was resolved for; None without a lock file."""
    lock = locks.find(scenario.locks, pins)
    return lock.date if lock else None


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
    stack = next(part for part in quirks.by_python(stack) if part.pins)
    with index.waiting(f"the package index, which knows when {name} {version} was released"):
        lock = uv.run(
            [
                "pip",
                "compile",
                "-",
                "--no-deps",
                "--format",
                "pylock.toml",
                *uv.target(stack),
                *uv.build_options(),
            ],
            stdin=f"{name}=={version}\n",
            pins={name: version},
        )
    named = re.search(r'^version = "(.+)"$', lock, flags=re.MULTILINE)
    if named and named[1] != version:  # it would not equal the version that a rank imports
        raise UserError(
            f"pins.{name}={version}: write it as its release is spelt, pins.{name}={named[1]}"
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
