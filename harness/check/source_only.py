"""Releases that have no wheel for the Python in question: pip would build them.

uv builds nothing here. By itself it would choose a release of years ago of what needs them, which
pip would never install: hydra-core 0.11.3, as antlr4-python3-runtime has no wheel. Therefore uv is
told what they need, as far as ``NEEDS`` knows it, and chooses them as if they had wheels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

FREQUENT = ("antlr4-python3-runtime", "deepspeed", "flash-attn", "pathtools", "promise")
"""Packages of this kind that many files name or need: to learn it from uv costs a try for each."""
LOG = "uv_resolver=debug"
"""What uv must log for ``searches``."""

FAILURES = 3
"""How many failed searches for a package are looked at."""

SEARCH = re.compile(
    r"DEBUG (?:Searching for a compatible version of (?P<name>[\w.-]+)(?:\[.*?\])? "
    r"\((?P<range>.*)\)|Selecting: (?P<selected>[\w.-]+)(?:\[.*?\])?==(?P<version>\S+))"
)


@dataclass(frozen=True)
class Search:
    """A search of uv in which it rejected releases of a package."""

    name: str
    requirement: str
    """What was required: ``antlr4-python3-runtime>=4.9,<4.10``."""
    selected: str
    """The version that uv selected; empty if it rejected all."""


def searches(log: str) -> list[Search]:
    """The searches in uv's log in which it rejected releases: of each package the first ones that
    failed, and the one that found the version that it selected last. uv logs a line for each try,
    and may come back to a package after it has looked at others."""
    ranges, selections = dict[str, dict[str, None]](), dict[str, str]()
    successes = set[tuple[str, str]]()
    for match in SEARCH.finditer(log):
        name = canonicalize_name(match["name"] or match["selected"])
        if match["name"]:
            ranges.setdefault(name, {})[match["range"]] = None
            continue
        version = selections[name] = match["version"]
        successes.update((name, r) for r in ranges.get(name, ()) if _contains(r, version))
    failures = [
        Search(name, _requirement(name, r), "")
        for name, those in ranges.items()
        for r in [r for r in those if (name, r) not in successes][:FAILURES]
    ]
    return failures + [
        Search(name, _requirement(name, r), selections[name])
        for name, those in ranges.items()
        for r in [r for r in those if (name, r) in successes][:1]
        if len(those) > 1
    ]


def _contains(versions: str, version: str) -> bool:
    """Whether a range that uv wrote contains a version; one that is not understood does."""
    try:
        parts = map(_specifiers, versions.split("|"))
        return any(SpecifierSet(part).contains(version, prereleases=True) for part in parts)
    except InvalidSpecifier:
        return True


def _requirement(name: str, versions: str) -> str:
    """A requirement for the highest part of a range that uv wrote: ``<2 | >=4.9, <4.10``."""
    return f"{name}{_specifiers(versions.rpartition('|')[2])}"


def _specifiers(text: str) -> str:
    """Specifiers for a part of a range. A plus is a bound with all builds: ``>=4.8, <4.8+``."""
    inclusive = re.sub(r"<=?([^,]+)[+]", r"<=\1", text.replace("*", ""))
    return re.sub(r">=?([^,]+)[+]", r">\1", inclusive).strip()
