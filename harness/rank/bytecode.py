"""Bytecode that is checked by the hash of its source, not by its time and size.

Python reads the source at each import, and ignores bytecode of another source. So the code that
runs is always that of the source.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path

from harness.system.errors import Inconclusive
from harness.system.files import sha256
from harness.system.machine import cores

BATCH = 200
"""The number of sources for which another process pays off."""


def compile_all(sources: Sequence[Path], site: Path) -> None:
    """Compile sources under ``site`` for this Python, into the ``__pycache__`` beside each.

    The bytecode contains their paths without ``site``, so it is equal in two overlays; importing it
    restores the complete paths. Files that are not valid Python (templates, old syntax) are
    skipped. Raises Inconclusive if the compiler crashes.
    """
    count = min(cores(), 1 + len(sources) // BATCH)
    with ThreadPoolExecutor(count) as pool:
        parts = (sources[part::count] for part in range(count))
        list(pool.map(lambda part: _compile(part, site), parts))


def _compile(sources: Sequence[Path], site: Path) -> None:
    # In another process, as compiling holds the GIL. -I, as PYTHONPYCACHEPREFIX in the environment
    # would put the bytecode elsewhere.
    process = subprocess.run(
        [
            *(sys.executable, "-I", "-W", "ignore", "-m", "compileall", "-qq", "-i", "-"),
            *("-s", str(site), "--invalidation-mode", "checked-hash"),
        ],
        input="".join(f"{source}\n" for source in sources).encode(errors="surrogateescape"),
        capture_output=True,
        check=False,
    )
    if process.returncode not in (0, 1):  # 1: a source could not be compiled
        raise Inconclusive(f"compileall ended with exit code {process.returncode}")


_compiled: dict[tuple[str, str], tuple[Path, str]] = {}
"""Maps the name and SHA-256 of a source to its bytecode and the bytecode's SHA-256, in an overlay
that this process built. Overlays share many files, and compiling takes longest."""


def remember(hashes: Mapping[str, str], site: Path) -> None:
    """Note the bytecode of a new overlay, for the next ones. ``hashes`` has its files' hashes."""
    for name, digest in hashes.items():
        compiled = str(of(Path(name)))
        if name.endswith(".py") and compiled in hashes:
            _compiled.setdefault((name, digest), (site / compiled, hashes[compiled]))


def copied(source: Path, site: Path) -> bool:
    """Copy the bytecode of an equal source in another overlay, if there is one."""
    name = str(source.relative_to(site))
    compiled, expected = _compiled.get((name, sha256(source)), (None, ""))
    if compiled is None or not compiled.is_file():
        return False
    target = of(source)
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(compiled, target)
    return sha256(target) == expected  # otherwise it is compiled, over this one


def of(source: Path) -> Path:
    """The path where this Python looks for the bytecode of a source."""
    return Path(cache_from_source(str(source), optimization=""))


_excluded: list[str] = []


def keep(site: Path) -> None:
    """Write the bytecode of everything that this process imports, except in ``site`` and overlays.

    An overlay must not change, so its files are read-only. torch may be installed without bytecode:
    then each rank would compile about a hundred of its files every time.
    """
    if not _excluded:
        SourceFileLoader.set_data = _set_data  # type: ignore[assignment]
        sys.dont_write_bytecode = False
    _excluded.append(f"{site}{os.sep}")


_write = SourceFileLoader.set_data

_ANYBODY = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _set_data(self: SourceFileLoader, path: str, data: bytes, *, _mode: int = 0o666) -> None:
    """Replaces the method with which importlib writes bytecode."""
    if not path.startswith(tuple(_excluded)) and os.stat(self.path).st_mode & _ANYBODY:
        _write(self, path, data, _mode=_mode)
