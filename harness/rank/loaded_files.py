"""The files of a folder that this process has loaded. Standard library only.

Each rank records them for its overlay, with hashes, before it ends. Compared with the hashes in the
manifest they prove that no loaded file has changed, also if its size is the same.

A process can also move to another overlay without importing again. Torch imports numpy and a few
other packages from the first overlay on the path. If a second overlay has the same files, the paths
in the loaded modules are changed to that overlay.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.abc import FileLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
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


class Listener:
    """An import finder that notes the names of imported packages, and never finds a module."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            self.asked.add(name)
        return None


def listen() -> Listener:
    """Start to note the packages that this process imports."""
    listener = Listener()
    sys.meta_path.insert(0, listener)
    return listener


def are_same(site: Path, target: Path, packages: set[str], built: Mapping[str, str]) -> bool:
    """Whether this process would have loaded the same files from ``target`` as from ``site``.

    ``packages`` has the packages that the process tried to import, ``built`` the SHA-256 of each
    file of ``target``.
    """
    if (_packages(site) ^ _packages(target)) & packages:
        return False
    return all(built.get(name, "") == found for name, found in files(site).items())


def _packages(site: Path) -> set[str]:
    """The names in a folder that may be packages."""
    return {entry.partition(".")[0] for entry in os.listdir(site)}


def rebase(site: Path, target: Path) -> None:
    """Continue this process as if it had been started with ``target`` instead of ``site``."""
    for module in list(sys.modules.values()):
        _move(module, f"{site}{os.sep}", f"{target}{os.sep}")
    sys.path[:] = [str(target) if entry == str(site) else entry for entry in sys.path]
    moved_from(site)
    importlib.invalidate_caches()


def _move(module: ModuleType, before: str, after: str) -> None:
    try:
        attributes = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return  # not a module

    def relocate(path: object) -> object:
        if isinstance(path, str) and path.startswith(before):
            return after + path[len(before) :]
        return path

    spec = attributes.get("__spec__")
    for name in ("__file__", "__cached__"):
        if name in attributes:
            attributes[name] = relocate(attributes[name])
    if type(attributes.get("__path__")) is list:
        attributes["__path__"][:] = map(relocate, attributes["__path__"])
    if type(spec) is ModuleSpec:
        spec.origin, cached = relocate(spec.origin), relocate(spec.cached)  # type: ignore[assignment]
        spec.cached = cached  # type: ignore[assignment]
        if type(spec.submodule_search_locations) is list:
            spec.submodule_search_locations[:] = map(relocate, spec.submodule_search_locations)  # type: ignore[arg-type]
        if isinstance(spec.loader, FileLoader):
            spec.loader.path = str(relocate(spec.loader.path))
