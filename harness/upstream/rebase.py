"""What a process has imported from one overlay, taken for the same files of another.

torch imports numpy and a few others from the overlay that comes first on the path. Where a second
overlay has the same, a process need not import them anew to go on with it: its modules then name
the files of the second, as if they had been loaded there.
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

from harness.upstream import loaded


class Listener:
    """Notes the packages that are asked for, whether they are found or not; finds none itself."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            self.asked.add(name)
        return None


def listen() -> Listener:
    """Begin to note what this process asks for."""
    listener = Listener()
    sys.meta_path.insert(0, listener)
    return listener


def same(site: Path, other: Path, asked: set[str], files: Mapping[str, str]) -> bool:
    """Whether ``other`` would have given this process all that it has from ``site``, and no more.

    ``asked`` are the packages that were asked for so far, ``files`` the SHA-256 of what ``other``
    was made of.
    """
    if (_packages(site) ^ _packages(other)) & asked:
        return False
    return all(files.get(name, "") == found for name, found in loaded.files(site).items())


def _packages(site: Path) -> set[str]:
    """The names that can be imported from a folder, and some that cannot."""
    return {entry.partition(".")[0] for entry in os.listdir(site)}


def rebase(site: Path, other: Path) -> None:
    """Have this process go on as if it had been started with ``other`` in the place of ``site``."""
    for module in list(sys.modules.values()):
        _move(module, f"{site}{os.sep}", f"{other}{os.sep}")
    sys.path[:] = [str(other) if entry == str(site) else entry for entry in sys.path]
    loaded.moved_from(site)
    importlib.invalidate_caches()


def _move(module: ModuleType, before: str, after: str) -> None:
    try:
        named = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return  # whatever somebody has put there

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
