"""The files of a folder that this process has loaded. Standard library only.

Each rank records them for its overlay, with hashes, before it ends. Compared with the hashes in the
manifest they prove that no loaded file has changed, also if its size is the same.
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
"""Lists the files mapped into this process, also shared libraries that no module names."""

GONE = "gone"
"""Replaces the hash of a loaded file that can no longer be read."""


def files(site: Path) -> dict[str, str]:
    """The SHA-256 of every file under ``site`` that this process has loaded, by its path there.

    Contains sources, bytecode, extension modules and, on Linux, other shared libraries. Imports
    nothing, and reads no attributes of modules, as that may import more. Modules that were removed
    from ``sys.modules`` are missing.
    """
    roots = {f"{folder}{os.sep}" for folder in (site, os.path.realpath(site))}
    names = {
        os.path.normpath(path[len(root) :])
        for path in (*_imported(), *_mapped())
        for root in roots
        if path.startswith(root) and path != root
    }
    return {name: found for name in sorted(names) if (found := _hash(os.path.join(site, name)))}


def _imported() -> Iterator[str]:
    """The paths of the modules of this process: sources, bytecode and extensions."""
    for module in list(sys.modules.values()):
        try:
            attributes: dict[str, Any] = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue  # not a module
        spec = attributes.get("__spec__")
        paths = [attributes.get("__file__"), attributes.get("__cached__")]
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
    """A file's SHA-256; empty for a folder, or for bytecode that does not exist. The file is read
    only once: what a process and its forks have loaded does not change."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, IsADirectoryError):
        return "" if path.endswith(".pyc") or os.path.isdir(path) else GONE
    except OSError:
        return GONE
