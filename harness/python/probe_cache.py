"""Keeps results of probes in pytest's cache, as long as nothing has changed that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from . import results
from .commands import content_of_probe
from .results import ProbeResult, of_json

ANSWERS = (0, 1)
"""Exit codes of probes that are kept; a script that failed is run again."""
INTERPRETERS = ("--python", "--against")
"""Options that name another Python."""
INSTALLED = (".dist-info", ".egg-info")
PATH_OF = "import sys; print(*sys.path, sep='\\n')"
LARGE = 10_000_000
"""Bytes of a file that is known by its size and time, not by its content."""


class Cache(Protocol):
    """The cache of pytest."""

    def get(self, key: str, default: Any) -> Any: ...

    def set(self, key: str, value: object) -> None: ...


class ProbeCache:
    """Probes, of which the cache has some; without a cache, each is run."""

    def __init__(self, cache: Cache | None) -> None:
        self._cache = cache

    def probe(self, words: Sequence[str]) -> tuple[ProbeResult, str]:
        """The result of a probe, and the day on which it ran if the cache had it."""
        kind = _digest(results.__file__)  # another one has other fields
        text = json.dumps([os.getcwd(), sys.executable, kind, *map(str, words)])
        key = f"distributed_bugs/{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        packages = _packages(words)
        entry = self._cache.get(key, None) if self._cache is not None else None
        if entry and entry["packages"] == packages and entry["files"] == _digests(entry["files"]):
            return of_json(ProbeResult, entry["content"]), entry["day"]
        began = time.time()
        content = content_of_probe(words)
        files = [*content["loaded"], *_named_files(words)]
        is_changed = any(_changed_at(file) >= began for file in files)
        if self._cache is not None and content["exit_code"] in ANSWERS and not is_changed:
            day = time.strftime("%Y-%m-%d", time.gmtime())
            new = {"day": day, "packages": packages, "files": _digests(files), "content": content}
            self._cache.set(key, new)
        return of_json(ProbeResult, content), ""


def _named_files(words: Iterable[str]) -> Iterator[str]:
    """The files that words name: ``config.json``, ``patch=fix.diff``."""
    for word in map(str, words):
        names = (word, word.partition("=")[2])
        yield from (name for name in names if name and os.path.isfile(name))


def _changed_at(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return time.time()


def _digests(files: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """By file, what tells whether it changes."""
    return {file: _digest(file) for file in files}


def _digest(file: str) -> str:
    try:
        state = os.stat(file)
        if state.st_size > LARGE:
            return f"{state.st_size} {state.st_mtime_ns}"
        with open(file, "rb") as content:
            return hashlib.sha256(content.read()).hexdigest()
    except OSError:
        return ""


def _packages(words: Sequence[str]) -> str:
    """A digest of the releases that this Python has, and those that words name."""
    folders = [list(sys.path)]
    texts = list(map(str, words))
    for number, text in enumerate(texts):
        option, equals, value = text.partition("=")
        if option in INTERPRETERS:
            folders.append(_path_of(value if equals else "".join(texts[number + 1 : number + 2])))
    names = [sorted(set(_installed(path))) for path in folders]
    return hashlib.sha256(json.dumps([sys.version, names]).encode()).hexdigest()


def _path_of(python: str) -> list[str]:
    """Where another Python looks for packages; empty if it does not start: probe says why."""
    python = os.path.join(python, "bin", "python") if os.path.isdir(python) else python
    try:
        out = subprocess.run([python, "-c", PATH_OF], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return out.stdout.splitlines()


def _installed(path: Iterable[str]) -> Iterator[str]:
    for folder in filter(os.path.isdir, path):
        yield from (name for name in os.listdir(folder) if name.endswith(INSTALLED))
