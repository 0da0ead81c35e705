"""The distributions that an interpreter finds, read from their metadata; nothing is imported.

Standard library only, of any Python since 3.8: other interpreters run the text of this file.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

SITES = ("site-packages", "dist-packages")
"""Names of folders with installed packages."""


def packages(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Read the metadata of each of these packages that is installed.

    ``versions`` has more than one entry if a folder has the metadata of several; an update that
    failed can leave that. ``direct_url`` is the content of direct_url.json, which an installer
    writes unless it took the package from an index. ``source`` is whether the metadata are in a
    folder of sources, as after ``setup.py develop``. ``folder`` is where it is installed.
    """
    return {name: package for name in names if (package := _package(name))}


def _package(name: str) -> dict[str, Any] | None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    folder = str(distribution.locate_file(""))
    namesakes = metadata.Distribution.discover(name=name, path=[folder])
    egg = distribution.read_text("METADATA") is None
    return {
        "versions": sorted({_version(distribution), *map(_version, namesakes)}),
        "direct_url": distribution.read_text("direct_url.json"),
        "folder": folder,
        "source": egg and os.path.basename(os.path.normpath(folder)) not in SITES,
    }


def _version(distribution: metadata.Distribution) -> str:
    """The version; empty if the file with it is missing or damaged."""
    try:
        return str(distribution.version or "")
    except Exception:  # which one depends on the Python
        return ""


def owners(modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """The distributions that install each of these modules, with their versions:
    ``{"peft": {"peft-kt": "0.18.1"}}``.

    Their lists of files are read. An editable install has only a list of its modules.
    """
    folders = {module.replace(".", "/"): module for module in modules}
    choices = "|".join(map(re.escape, folders))
    line = re.compile(rf"^({choices})(?:/__init__)?\.py\b", re.MULTILINE)
    names: dict[str, dict[str, str]] = {module: {} for module in folders.values()}
    for distribution in metadata.distributions():
        files = _text(distribution, "RECORD") or _text(distribution, "installed-files.txt")
        installed = set(line.findall(files))
        if not installed and (not files or "__editable__" in files):
            installed = folders.keys() & set(_text(distribution, "top_level.txt").split())
        for folder in installed:
            name = re.sub(r"[-_.]+", "-", _name(distribution)).lower()
            names[folders[folder]].setdefault(name, _version(distribution))
    return names


def _text(distribution: metadata.Distribution, file: str) -> str:
    """A file of the metadata; empty if it is missing or damaged."""
    try:
        return distribution.read_text(file) or ""
    except (OSError, ValueError):
        return ""


def _name(distribution: metadata.Distribution) -> str:
    """The name; that of its folder if the file with it is missing or damaged."""
    try:
        return str(distribution.metadata["Name"] or "?")
    except Exception:  # which one depends on the Python
        return "?"


def described(names: Iterable[str], modules: Iterable[str] = ()) -> dict[str, Any]:
    """This interpreter: its version, its site-packages, and what ``packages`` and ``owners``
    return."""
    site = sysconfig.get_path("purelib")
    return {
        "python": sys.version.split()[0],
        "site": site,
        "packages": packages(names),
        "owners": owners(modules),
    }


def _main(mark: str, question: Mapping[str, list[str]]) -> None:
    """Print the answer as one marked line: other code may have written to stdout, too."""
    answer = described(**question)
    os.write(1, f"\n{mark}{json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
