"""Releases that have no wheel for the Python in question: pip would build them.

uv builds nothing here. By itself it would choose a release of years ago of what needs them, which
pip would never install: hydra-core 0.11.3, as antlr4-python3-runtime has no wheel. Therefore uv is
told what they need, as far as ``NEEDS`` knows it, and chooses them as if they had wheels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from harness.check.needs import NEEDS

FREQUENT = ("antlr4-python3-runtime", "deepspeed", "flash-attn", "pathtools", "promise")
"""Packages of this kind that many files name or need: to learn it from uv costs a try for each."""
LOG = "uv_resolver=debug"
"""What uv must log for ``searches``."""

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


def needs(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What to tell uv about the needs of packages."""
    return {name: NEEDS.get(name, ()) for name in sorted(names)}


def searches(log: str) -> list[Search]:
    """The searches in uv's log in which it rejected releases: of each package those that failed,
    and the last one that did not. uv logs a line for each try."""
    failures, successes = dict[Search, None](), dict[str, Search | None]()
    name, versions, tries = "", "", 0
    for match in SEARCH.finditer(f"{log}\nDEBUG Selecting: the-end==0 "):
        searched = canonicalize_name(match["name"] or "")
        if searched and searched == name:
            tries += 1
            continue
        if name and canonicalize_name(match["selected"] or "") == name:
            selection = Search(name, _requirement(name, versions), match["version"])
            successes[name] = selection if tries > 1 else None
        elif name:
            failures[Search(name, _requirement(name, versions), "")] = None
        name, versions, tries = searched, match["range"], 1
    return [*failures, *filter(None, successes.values())]


def _requirement(name: str, versions: str) -> str:
    """A requirement for the highest part of a range as uv writes it: ``<2 | >=4.9, <4.10``. A plus
    is a bound that includes all builds: ``<4.8+``."""
    highest = versions.rpartition("|")[2].replace("*", "")
    return name + re.sub(r"<=?([^,]+)[+]", r"<=\1", highest)
