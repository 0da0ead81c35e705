"""Which files of a folder this process runs, by their content. Standard library only.

Ranks ask it of their overlay, before they leave: the hashes, beside those of the files as they were
made, prove that nobody has changed them meanwhile. A change that keeps a file's size is one, too.
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
"""What Linux has mapped for this process: shared libraries that no module names, among others."""

GONE = "gone"
"""Stands for the hash of a file that was loaded and cannot be read any more."""


def files(site: Path) -> dict[str, str]:
    """The SHA-256 of every file under ``site`` that this process has loaded, by its path there.

    Those are the sources of its modules, their bytecode where there is some, extension modules and,
    on Linux, other shared libraries. Imports nothing and reads no attribute of a module, as some
    import more on being asked. Code of a module that was removed from ``sys.modules`` is not seen.
    """
    places = (site, os.path.realpath(site), *_before)
    roots = tuple(dict.fromkeys(f"{place}{os.sep}" for place in places))
    names = {_within(roots, path) for path in (*_imported(), *_mapped())} - {""}
    return {name: found for name in sorted(names) if (found := _hash(os.path.join(site, name)))}


_before: list[str] = []
"""Folders that files of this process were loaded from which now go by another (see ``rebase``)."""


def moved_from(site: Path) -> None:
    """Have what was loaded from this folder count among the files of the one that is asked for."""
    _before.extend({str(site), os.path.realpath(site)})


def _within(roots: tuple[str, ...], path: str) -> str:
    inside = next((path[len(root) :] for root in roots if path.startswith(root)), "")
    return os.path.normpath(inside) if inside else ""


def _imported() -> Iterator[str]:
    """The paths that the modules of this process name: sources, bytecode and extensions."""
    for module in list(sys.modules.values()):
        try:
            named: dict[str, Any] = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue  # whatever somebody has put there
        spec = named.get("__spec__")
        told = [named.get("__file__"), named.get("__cached__")]
        if type(spec) is ModuleSpec:
            told += [spec.origin, spec.cached]
        yield from (path for path in told if isinstance(path, str))


def _mapped() -> Iterator[str]:
    try:
        lines = MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        yield line[line.find("/") :].removesuffix(" (deleted)")


@cache
def _hash(path: str) -> str:
    """A file's SHA-256; empty for bytecode that was never there, or a folder. Read once: what a
    process has loaded stays what it was, for those that are forked from it, too."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, IsADirectoryError):
        return "" if path.endswith(".pyc") or os.path.isdir(path) else GONE
    except OSError:
        return GONE
