"""Bytecode that is checked by the hash of its source, not by its time and size.

Python reads the source at each import, and ignores bytecode of another source. So the code that
runs is always that of the source.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path

from harness.errors import Inconclusive

BATCH = 200
"""How many sources justify another process."""


def compile_all(sources: Sequence[Path]) -> None:
    """Compile sources for this Python, into the ``__pycache__`` beside each.

    Files that are not valid Python (templates, old syntax) are skipped. Raises Inconclusive if the
    compiler crashes.
    """
    count = min(len(os.sched_getaffinity(0)), 1 + len(sources) // BATCH)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(_compile, (sources[part::count] for part in range(count))))


def _compile(sources: Sequence[Path]) -> None:
    # In another process, as compiling holds the GIL. -I, as PYTHONPYCACHEPREFIX in the environment
    # would put the bytecode elsewhere.
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-W",
            "ignore",
            "-m",
            "compileall",
            "-qq",
            "-i",
            "-",
            "--invalidation-mode",
            "checked-hash",
        ],
        input="".join(f"{source}\n" for source in sources).encode(errors="surrogateescape"),
        capture_output=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # 1: a source could not be compiled
        raise Inconclusive(f"compileall ended with exit code {done.returncode}")


def of(source: Path) -> Path:
    """The path where this Python looks for the bytecode of a source."""
    return Path(cache_from_source(str(source), optimization=""))


_excluded: list[str] = []


def keep(site: Path) -> None:
    """Write the bytecode of everything that this process imports, except in ``site``.

    An overlay has its bytecode and must not change. torch may be installed without bytecode: then
    each rank would compile about a hundred of its files every time.
    """
    if not _excluded:
        SourceFileLoader.set_data = _set_data  # type: ignore[assignment]
        sys.dont_write_bytecode = False
    _excluded.append(f"{site}{os.sep}")


_write = SourceFileLoader.set_data


def _set_data(self: SourceFileLoader, path: str, data: bytes, *, _mode: int = 0o666) -> None:
    """Replaces the method with which importlib writes bytecode."""
    if not path.startswith(tuple(_excluded)):
        _write(self, path, data, _mode=_mode)
