"""Pins: the upstream releases that a run uses, and the stack that they are part of; also what these
packages do not declare: missing bounds, missing wheels, other module names.

Without an overlay, an interpreter has the packages.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from harness.bugs.api.spec import Scenario
from harness.bugs.packages import upstreams
from harness.system.errors import UserError
from harness.system.text import short

TORCH = "torch"
"""The package that overlays copy from an environment instead of installing it (see ``torches``)."""


@dataclass(frozen=True)
class Torch:
    """The torch that an overlay copies."""

    folder: str
    """The site-packages that contain it."""
    record: str
    """The SHA-256 of the list of its files."""


@dataclass(frozen=True)
class Stack:
    """Upstream releases for one Python on one platform, resolved as of one day."""

    pins: Mapping[str, str]
    date: str
    python: str
    """Like ``3.11``."""
    platform: str
    """Like ``linux-x86_64``, as ``sysconfig.get_platform`` returns it."""
    lock: str = ""
    """The committed lock of these pins, see ``locks``; empty if they are resolved now."""
    torch: Torch | None = None
    """Of a stack that pins torch."""
    patches: tuple[str, ...] = ()
    """The user's unified diffs, which are applied to its packages."""

    @property
    def packages(self) -> dict[str, str]:
        """The pins of all packages but torch: those that are resolved and installed."""
        return {name: version for name, version in self.pins.items() if name != TORCH}

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}

    def __str__(self) -> str:
        return describe(self.pins)


def describe(pins: Mapping[str, str]) -> str:
    """Releases in words: ``deepspeed 0.19.8, megatron-core 0.16.1``."""
    return ", ".join(f"{name} {version}" for name, version in pins.items()) or "torch alone"


def here() -> tuple[str, str]:
    """The Python and the platform of this process, as a Stack names them."""
    return "{}.{}".format(*sys.version_info[:2]), sysconfig.get_platform()


def platform_tag(name: str) -> str:
    """The platform of a Stack for uv's name of a platform, such as x86_64-manylinux_2_28."""
    machine, _, system = name.partition("-")
    if not system.startswith(("manylinux", "linux", "unknown-linux")):
        raise UserError(f"no platform '{name}': name a Linux one, such as x86_64-manylinux_2_28")
    return f"linux-{machine}"


def as_pinned(name: str, version: str) -> str:
    """An installed version as it is pinned: torch's without its build, 2.13.0 for 2.13.0+cpu."""
    return Version(version).public if name == TORCH else version


def is_source(version: str) -> bool:
    """Whether this is the version of a commit and not of a release, see ``sources``."""
    return bool(re.search(r"\+g[0-9a-f]{12}(\.d[0-9a-f]{8})?$", version))


def is_pinned(name: str, installed: str, version: str) -> bool:
    """Whether an installed version is the pinned one; a source is installed without its commit."""
    if is_source(version):
        return Version(installed).public == Version(version).public
    return as_pinned(name, installed) == version


def complete(scenario: Scenario, requested: Mapping[str, str]) -> dict[str, str]:
    """All pins of a scenario: the user's, then their companions, then the scenario's defaults."""
    unknown = sorted(set(requested) - set(scenario.pins))
    if unknown:
        choices = ", ".join(scenario.pins) or "none"
        raise UserError(f"no pin '{unknown[0]}' in this scenario. Choices: {choices}.")
    pins = {**scenario.pins, **{name: _version(name, text) for name, text in requested.items()}}
    for companion in scenario.companions:
        if matches(companion.when, pins):
            pins.update({k: v for k, v in companion.pins.items() if k not in requested})
    return {name: as_pinned(name, _version(name, version)) for name, version in pins.items()}


def without_companions(scenario: Scenario, recorded: Mapping[str, str]) -> dict[str, str]:
    """The pins of a recorded result that a user can name: the others follow from them."""
    return {name: version for name, version in recorded.items() if name in scenario.pins}


def matches(when: str, pins: Mapping[str, str]) -> bool:
    """Whether the pins satisfy a requirement such as ``deepspeed<0.16``."""
    requirement = _requirement(when)
    version = pins.get(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


@cache
def _requirement(when: str) -> Requirement:
    return Requirement(when)


def covers(scenario: Scenario, pins: Mapping[str, str]) -> bool:
    """Whether the scenario can test these releases."""
    return not scenario.releases or matches(scenario.releases, pins)


def _version(name: str, written: str) -> str:
    try:
        return spelt(Version(written))
    except ValueError:  # InvalidVersion, or more digits than Python reads
        folder = f", or ./{short(written)} for the folder" if os.path.isdir(written) else ""
        raise UserError(
            f"pins.{name}={short(written)} is not a version: write one like 0.15.4{folder}"
        ) from None


def spelt(version: Version) -> str:
    """A version as releases are spelt: 0.29.3, where v0.29.3 or 0.29.3.0 was written.

    Zeros after the third number are removed: they mean nothing, and releases have none there.
    Earlier zeros stay, as in 4.0.0: only the index knows whether a release is 5.0 or 5.0.0.
    """
    short = version.release
    while len(short) > 3 and not short[-1]:
        short = short[:-1]
    return str(version).replace(_dotted(version.release), _dotted(short), 1)


def _dotted(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))


class Distribution(NamedTuple):
    """An installed package."""

    version: str
    folder: str
    """Where it is installed."""


@dataclass(frozen=True)
class Interpreter:
    """A Python, with those packages that were asked for and are installed."""

    executable: str
    version: str
    """Like ``3.11.7``."""
    site: str
    """Its site-packages."""
    packages: Mapping[str, Distribution]


def source_only() -> list[str]:
    """The packages that are published without wheels."""
    return [name for upstream in upstreams().values() for name in upstream.source_only]


def bounds(pins: Mapping[str, str]) -> list[str]:
    """The dependencies that these releases should have declared."""
    return [
        entry.needs
        for name, upstream in upstreams().items()
        for entry in upstream.undeclared
        if matches(name + entry.releases, pins)
    ]


def why_not_imported(pins: Mapping[str, str], python: str) -> str:
    """Why a Python, such as ``3.11.2``, cannot import these releases; empty if it can."""
    for name, upstream in upstreams().items():
        for entry in upstream.not_imported:
            is_meant = matches(name + entry.releases, pins)
            if is_meant and SpecifierSet(entry.pythons).contains(python):
                return f"Python {python} cannot import {name} {pins[name]}: {entry.report}"
    return ""


def by_python(stack: Stack) -> list[Stack]:
    """A stack split by the Python whose wheels are installed: first its own Python, then others.

    See ``Wheels``. The first part may have no pins.
    """
    pins_by_python: dict[str, dict[str, str]] = {}
    pythons_of: dict[str, tuple[str, ...]] = {}
    for name, upstream in upstreams().items():
        for entry in upstream.wheels:
            if matches(name + entry.releases, stack.pins):
                pythons_of.setdefault(name, entry.pythons)  # the first that matches
    for name, pythons in pythons_of.items():
        if stack.python not in pythons:
            pins_by_python.setdefault(pythons[-1], {})[name] = stack.pins[name]
    split_names = {name for pins in pins_by_python.values() for name in pins}
    own_pins = {name: version for name, version in stack.pins.items() if name not in split_names}
    others = [replace(stack, pins=pins, python=python) for python, pins in pins_by_python.items()]
    return [replace(stack, pins=own_pins), *others]
