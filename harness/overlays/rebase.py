"""Moves a process from one overlay to another that has the same files, without importing again.

torch imports numpy and a few other packages from the first overlay on the path. If a second overlay
has the same files, the paths in the loaded modules are changed to those of the second.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import FileLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from harness.overlays import loaded


class Listener:
    """An import finder that notes the names of imported packages, and finds none itself."""

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


def same(site: Path, other: Path, asked: set[str], files: Mapping[str, str]) -> bool:
    """Whether this process would have loaded the same files from ``other`` as from ``site``.

    ``asked`` has the packages whose import was tried, ``files`` the SHA-256 of the files of
    ``other`` as they were built.
    """
    if (_packages(site) ^ _packages(other)) & asked:
        return False
    return all(files.get(name, "") == found for name, found in loaded.files(site).items())


def _packages(site: Path) -> set[str]:
    """The names in a folder that may be packages."""
    return {entry.partition(".")[0] for entry in os.listdir(site)}


def rebase(site: Path, other: Path) -> None:
    """Continue this process as if it had been started with ``other`` instead of ``site``."""
    for module in list(sys.modules.values()):
        _move(module, f"{site}{os.sep}", f"{other}{os.sep}")
    sys.path[:] = [str(other) if entry == str(site) else entry for entry in sys.path]
    loaded.moved_from(site)
    importlib.invalidate_caches()


def _move(module: ModuleType, before: str, after: str) -> None:
    try:
        named = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return  # not a module

    def moved(path: object) -> object:
        if isinstance(path, str) and path.startswith(before):
            return after + path[len(before) :]
        return path

    spec = named.get("__spec__")
    for name in ("__file__", "__cached__"):
        if name in named:
            named[name] = moved(named[name])
    if type(named.get("__path__")) is list:
        named["__path__"][:] = map(moved, named["__path__"])
    if type(spec) is ModuleSpec:
        spec.origin, cached = moved(spec.origin), moved(spec.cached)  # type: ignore[assignment]
        spec.cached = cached  # type: ignore[assignment]
        if type(spec.submodule_search_locations) is list:
            spec.submodule_search_locations[:] = map(moved, spec.submodule_search_locations)  # type: ignore[arg-type]
        if isinstance(spec.loader, FileLoader):
            spec.loader.path = str(moved(spec.loader.path))
