"""The lock files of conda's world: conda-lock.yml and pixi.lock, for one platform.

A project may have several environments or categories of packages, and only its user knows which are
installed: all count, as the extras of other lock files do.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.utils import InvalidName, canonicalize_name

from harness.check.conda_environment import FILE
from harness.check.installed import FOLDER, Installed, at_address, described, from_git
from harness.check.lock_files import Packages, refuse_unknown_version
from harness.check.synonyms import ELSEWHERE
from harness.system.documents import as_list, as_table, table_at, text_at

TABLES = ({"metadata", "package"}, {"version", "environments", "packages"})
"""The tables of conda-lock.yml and of pixi.lock."""
CONDA_LOCK = (1,)
PIXI = (4, 5, 6)
"""The versions of the formats that are read."""

USUAL = "linux-64"
PLATFORMS = {
    ("linux", "x86_64"): USUAL,
    ("linux", "aarch64"): "linux-aarch64",
    ("darwin", "x86_64"): "osx-64",
    ("darwin", "arm64"): "osx-arm64",
}
"""conda's names of platforms."""


def is_lock(text: str) -> bool:
    """Whether a text has the tables of conda-lock.yml or of pixi.lock."""
    keys = set(re.findall(r"^(\w+):", text, flags=re.MULTILINE))
    return any(tables <= keys for tables in TABLES)


Entry = tuple[str, str, str, str, bool]
"""The platform, name, version and address of a package, and whether pip installs it."""


def read(content: Any, file: str) -> Packages:
    """The packages in conda-lock.yml or pixi.lock. Raises ValueError for another content."""
    document = as_table(content, "it")
    is_pixi = "package" not in document
    kind, versions = ("pixi.lock", PIXI) if is_pixi else ("conda-lock.yml", CONDA_LOCK)
    refuse_unknown_version(file, kind, document.get("version", 1), *versions)
    entries = list(_of_pixi(document) if is_pixi else _of_conda_lock(document))
    platforms = [entry[0] for entry in entries]
    ours = PLATFORMS.get((sys.platform, platform.machine()), USUAL)
    chosen = next((name for name in (ours, USUAL, *platforms) if name in platforms), "")
    for entry in entries:
        if entry[0] == chosen:
            yield from _package(*entry)


def _of_conda_lock(document: Mapping[str, Any]) -> Iterator[Entry]:
    for number, entry in enumerate(as_list(document.get("package"), "package"), start=1):
        table = as_table(entry, f"package {number}")
        system, name, version, url = (
            text_at(table, key) for key in ("platform", "name", "version", "url")
        )
        yield system, name, version, url, text_at(table, "manager") == "pip"


def _of_pixi(document: Mapping[str, Any]) -> Iterator[Entry]:
    tables = {}
    for number, entry in enumerate(as_list(document.get("packages"), "packages"), start=1):
        table = as_table(entry, f"package {number}")
        tables[_place(table) or text_at(table, "url") or text_at(table, "path")] = table
    for environment, content in table_at(document, "environments").items():
        where = f"packages of {environment}"
        packages = as_table(as_table(content, environment).get("packages"), where)
        for system, entries in packages.items():
            for entry in as_list(entries, f"packages of {system}"):
                reference = as_table(entry, f"an entry of {system}")
                place = _place(reference)
                table = tables.get(place, {})
                name, version = text_at(table, "name"), text_at(table, "version")
                if not name and (file := FILE.fullmatch(place)):
                    name, version = file[1], file[2]
                yield system, name, version, place, "pypi" in reference


def _place(table: Mapping[str, Any]) -> str:
    """The address of a package in pixi.lock; empty if the table has it in another way."""
    return text_at(table, "conda") or text_at(table, "pypi")


def _package(_: str, name: str, version: str, place: str, by_pip: bool) -> Packages:
    """A package, under the name that pip has; none for what is no package of Python's."""
    try:
        canonical = str(canonicalize_name(name, validate=True))
    except InvalidName:
        return
    package: Installed
    if not by_pip:
        canonical, package = ELSEWHERE.get(canonical, canonical), described(version)
    elif place.startswith("git+"):
        package = from_git(canonical, place, version=version)
    elif "://" not in place and place:
        package = described(version, FOLDER)
    else:
        package = described(version or at_address(place)[1].version)
    yield canonical, package
