"""The files of a folder that this process has loaded, with hashes. Standard library only.

Each rank records them for its overlay before it ends. Compared with the hashes in the manifest they
prove that no loaded file has changed, also if its size is the same.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")
"""The files that are mapped into this process, with shared libraries that no module names."""

GONE = "gone"
"""Replaces the hash of a loaded file that can no longer be read."""


def files(site: Path) -> dict[str, str]:
    """The SHA-256 of every file under ``site`` that this process has loaded, by its path there.

    They are the sources of its modules, their bytecode, extension modules and, on Linux, other
    shared libraries. Imports nothing, and reads no attributes of modules, as that may import more.
    Modules that were removed from ``sys.modules`` are missing.
    """
    folders = (site, os.path.realpath(site), *_before)
    roots = tuple(dict.fromkeys(f"{folder}{os.sep}" for folder in folders))
    names = {_within(roots, path) for path in (*_imported(), *_mapped())} - {""}
    return {name: found for name in sorted(names) if (found := _hash(os.path.join(site, name)))}


_before: list[str] = []
"""Folders that this process loaded files from before it was moved to another (see ``rebase``)."""


def moved_from(site: Path) -> None:
    """Count the files that were loaded from this folder as files of any other folder."""
    _before.extend({str(site), os.path.realpath(site)})


def _within(roots: tuple[str, ...], path: str) -> str:
    inside = next((path[len(root) :] for root in roots if path.startswith(root)), "")
    return os.path.normpath(inside) if inside else ""


def _imported() -> Iterator[str]:
    """The paths of the modules of this process: sources, bytecode and extensions."""
    for module in list(sys.modules.values()):
        try:
            named: dict[str, Any] = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue  # not a module
        spec = named.get("__spec__")
        paths = [named.get("__file__"), named.get("__cached__")]
        if type(spec) is ModuleSpec:
            paths += [spec.origin, spec.cached]
        yield from (path for path in paths if isinstance(path, str))


def _mapped() -> Iterator[str]:
    try:
        lines = MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        yield line[line.find("/") :].removesuffix(" (deleted)")


@cache
def _hash(path: str) -> str:
    """A file's SHA-256; empty for a folder, or for bytecode that does not exist. Read only once:
    what a process has loaded does not change, also in its forks."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, IsADirectoryError):
        return "" if path.endswith(".pyc") or os.path.isdir(path) else GONE
    except OSError:
        return GONE
