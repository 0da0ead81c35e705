"""Lock files: the dependencies of an overlay, resolved once and committed with the scenario.

    locks/deepspeed-0.19.8_megatron-core-0.16.1.txt in the scenario's folder

A lock file is a requirements file of ``name==version`` lines. It leaves out torch and what torch
requires. It is valid for the Pythons that its header names, on Linux x86-64; a line that only some
of them need has a marker. An overlay with a lock file does not depend on what the index offers
today.

Each Python is resolved on its own. uv can resolve for several at once, but it does not check
whether a release has wheels for all of them: numpy 1.26.4 accepts Python 3.13 without a wheel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.system.errors import Inconclusive

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""The Pythons that lock files are made for."""

PLATFORM = "linux-x86_64"

HEADER = """\
# {what} with dependencies as of {date}. Torch is not included.
# Python: {pythons}
# Written by: python -m harness lock {scenario}
"""


@dataclass(frozen=True)
class Lock:
    """The content of a lock file."""

    date: str
    """The day (ISO) that the dependencies were resolved for."""
    pythons: tuple[str, ...]
    lines: tuple[Requirement, ...]

    def versions(self, python: str) -> dict[str, str]:
        """The version of each package that an overlay for this Python contains."""
        markers = {"python_version": python}
        requirements = [
            line for line in self.lines if line.marker is None or line.marker.evaluate(markers)
        ]
        return {line.name: next(iter(line.specifier)).version for line in requirements}


def lines(versions: Mapping[str, str]) -> str:
    """Versions as ``name==version`` lines, sorted by name."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def versions(text: str) -> dict[str, str]:
    """The packages that such lines name, by their canonical names, with their versions."""
    return dict(entries(text))


def entries(text: str) -> list[tuple[str, str]]:
    """Each package in such lines with its version; hashes and markers may follow."""
    pairs = re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", text, flags=re.MULTILINE)
    return [(canonicalize_name(name), version) for name, version in pairs]


def file(folder: Path, releases: Mapping[str, str]) -> Path:
    """The lock file of these pins in a scenario's folder of lock files."""
    return folder / f"{'_'.join(f'{name}-{version}' for name, version in releases.items())}.txt"


def find(folder: Path | None, releases: Mapping[str, str]) -> Lock | None:
    """The content of the lock file of these pins; None if there is none."""
    path = file(folder, releases) if folder else None
    return read(path) if path and path.is_file() else None


def read(path: Path) -> Lock:
    """Read a lock file; raises Inconclusive, with its path, if it is not valid."""
    try:
        text = path.read_text(encoding="utf-8")
        date = re.search(r"^# .* as of (\d{4}-\d\d-\d\d)\.", text, flags=re.MULTILINE)
        pythons = re.search(r"^# Python: (.+)$", text, flags=re.MULTILINE)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        if date and pythons and lines:
            return Lock(date[1], tuple(pythons[1].split()), tuple(map(Requirement, lines)))
    except (OSError, UnicodeError, InvalidRequirement) as error:
        reason = str(error).partition("\n")[0]
        raise Inconclusive(f"cannot read the lock file {path}: {reason}") from None
    raise Inconclusive(f"{path} is not a lock file: write it with 'python -m harness lock'")


def text(title: str, date: str, scenario: str, by_python: Mapping[str, Mapping[str, str]]) -> str:
    """The text of a lock file from the versions that each Python needs."""
    header = HEADER.format(what=title, date=date, pythons=" ".join(by_python), scenario=scenario)
    return header + "".join(f"{line}\n" for line in _merged(by_python))


def _merged(by_python: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One line for each package and version, with a marker where not every Python has it."""
    pythons: dict[tuple[str, str], list[str]] = {}
    for python, versions in by_python.items():
        for package in versions.items():
            pythons.setdefault(package, []).append(python)
    return [
        f"{name}=={version}{_marker(those, list(by_python))}"
        for (name, version), those in sorted(pythons.items())
    ]


def _marker(those: Sequence[str], every: Sequence[str]) -> str:
    """The marker after a version: none if every Python needs it."""
    if those == every:
        return ""
    if those == every[: len(those)]:
        return f' ; python_version < "{every[len(those)]}"'
    if those == every[-len(those) :]:
        return f' ; python_version >= "{those[0]}"'
    return " ; " + " or ".join(f'python_version == "{python}"' for python in those)
