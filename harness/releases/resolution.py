"""Resolves pins to the versions of all their dependencies, and installs these.

uv resolves and installs. The package index is the one in the user's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement

from harness.bugs import pins
from harness.bugs.api.spec import Scenario
from harness.bugs.packages import upstreams
from harness.bugs.pins import TORCH, Stack, here, is_source
from harness.releases import locks, releases, sources, torches, uv
from harness.system.errors import Inconclusive
from harness.system.machine import cache_folder

BASE = (
    "torch",
    "triton",
    "typing-extensions",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "setuptools",
    "sympy",
)
"""torch and what it requires: they come from the base environment. Only the overlay of a scenario
that pins torch has a copy of it."""


def stack(
    scenario: Scenario,
    pins: Mapping[str, str],
    cache: Path,
    *,
    day: str | None = None,
    python: str | None = None,
    platform: str | None = None,
) -> Stack:
    """The stack of these pins, with the versions of their lock file if the scenario has one.

    Without a lock file, or with ``day``, dependencies are resolved for ``day`` or for
    ``releases.day_of``.
    """
    here_python, here_platform = here()
    python, platform = python or here_python, platform or here_platform
    if not set(pins) - {TORCH}:  # a bug of torch itself: nothing to resolve
        torch = torches.at_hand(pins[TORCH], cache) if pins else None
        return Stack(dict(pins), day or "", python, platform, torch=torch)
    if day is None and platform == locks.PLATFORM:
        lock = locks.find(scenario.locks, pins)
        if lock and python in lock.pythons:
            return Stack(
                dict(pins), lock.date, python, platform, locks.lines(lock.versions(python))
            )
    day = day or releases.day_of(scenario, pins, python, cache)
    return Stack(dict(pins), day, python, platform)


def lock(stack: Stack) -> str:
    """The lock of a stack, ``name==version`` lines: committed, or resolved now. It names torch only
    if the stack pins it.

    A release that is installed from the wheel of another Python brings no dependencies.
    """
    if stack.lock:
        return stack.lock
    main, *others = pins.by_python(stack)
    versions = locks.versions(_resolved_soon(main, pins.bounds(stack.pins)))
    versions |= {name: version for name, version in main.packages.items() if is_source(version)}
    versions |= {name: version for part in others for name, version in part.pins.items()}
    return locks.lines(versions | ({TORCH: stack.pins[TORCH]} if stack.torch else {}))


def _resolved_soon(stack: Stack, bounds: Sequence[str]) -> str:
    """Resolve for the stack's day, otherwise for the day of its newest pin: a companion may need
    packages that are younger than the subject."""
    try:
        return _resolved(stack, bounds)
    except Inconclusive:
        days = [releases.released(*pin, cache_folder()) for pin in stack.packages.items()]
        if not days:
            raise
        later = releases.settled(max(days), stack.python)
        if later <= stack.date:
            raise
        return _resolved(replace(stack, date=later), bounds)


def _resolved(stack: Stack, bounds: Sequence[str]) -> str:
    requirements = [*(_requirement(*pin) for pin in stack.packages.items()), *bounds]
    if not requirements:
        return ""
    base = set(BASE) - {Requirement(bound).name for bound in bounds}
    known = [upstream for name, upstream in upstreams().items() if name in stack.packages]
    unused = {name for upstream in known for name in upstream.unused}
    return uv.run(
        [
            *("pip", "compile", "-", "--no-header", "--no-annotate"),
            *(("--exclude-newer", stack.date) if stack.date else ()),
            # A pin is exact, so its own day does not matter: a companion may be newer.
            *(word for n in stack.pins for word in ("--exclude-newer-package", f"{n}=2100-01-01")),
            *_options(stack),
        ],
        stdin="\n".join(requirements) + "\n",
        pins=stack.pins,
        lists={"--override": uv.left_out(base | unused)},
    )


def _options(stack: Stack) -> list[str]:
    return [*uv.wheels_only(stack.pins), *uv.target(stack), *uv.build_options()]


def _requirement(name: str, version: str) -> str:
    """A release, or the wheel of a source, as uv names it."""
    if not is_source(version):
        return f"{name}=={version}"
    return f"{name} @ {Path(sources.of(name, version, cache_folder()).wheel).as_uri()}"


def install(lock: str, stack: Stack, site: Path) -> None:
    """Install exactly the versions of a lock into the folder ``site``, without bytecode.

    The files are copies, not links into uv's cache: an edit of one must not change the other. torch
    is copied from where it is installed.
    """
    if stack.torch:
        torches.copy(stack.torch, site)
    main, *others = pins.by_python(stack)
    theirs = {name: version for part in others for name, version in part.packages.items()}
    theirs |= {TORCH: stack.pins[TORCH]} if stack.torch else {}
    ours = {name: version for name, version in locks.versions(lock).items() if name not in theirs}
    words = ["pip", "install", "-r", "-", "--target", str(site), "--no-deps", "--link-mode", "copy"]
    for part, versions in ((main, ours), *((part, part.pins) for part in others)):
        if versions:
            requirements = "".join(f"{_requirement(*pin)}\n" for pin in sorted(versions.items()))
            uv.run([*words, *_options(part)], stdin=requirements, pins=part.pins)
