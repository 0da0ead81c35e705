"""Bytecode that is bound to its source by the source's hash, not by its second and size.

Python reads the source at each import and leaves bytecode of another one alone: what runs is what
the source says, however the source was changed.
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
"""Sources that are worth a process of their own."""


def compile_all(sources: Sequence[Path]) -> None:
    """Compile sources for this Python, into the ``__pycache__`` beside each.

    What is no Python of today, templates and old syntax, is left without. Raises Inconclusive
    where the compiler itself came to an end.
    """
    count = min(len(os.sched_getaffinity(0)), 1 + len(sources) // BATCH)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(_compile, (sources[place::count] for place in range(count))))


def _compile(sources: Sequence[Path]) -> None:
    # A process of its own: compiling holds the lock of this one. -I, as PYTHONPYCACHEPREFIX in the
    # environment would put the bytecode elsewhere.
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
    if done.returncode not in (0, 1):  # 1: one of them could not be compiled
        raise Inconclusive(f"the compiler of bytecode was ended, with {done.returncode}")


def of(source: Path) -> Path:
    """Where this Python looks for the bytecode of a source."""
    return Path(cache_from_source(str(source), optimization=""))


_spared: list[str] = []


def keep(site: Path) -> None:
    """Have this process keep the bytecode of what it imports from now on, but none in ``site``.

    An overlay has its own, and is not to change. torch may have been installed without any: then
    each rank would compile some hundred of its files, every time.
    """
    if not _spared:
        SourceFileLoader.set_data = _set_data  # type: ignore[assignment]
        sys.dont_write_bytecode = False
    _spared.append(f"{site}{os.sep}")


_write = SourceFileLoader.set_data


def _set_data(self: SourceFileLoader, path: str, data: bytes, *, _mode: int = 0o666) -> None:
    """What importlib writes bytecode with."""
    if not path.startswith(tuple(_spared)):
        _write(self, path, data, _mode=_mode)
