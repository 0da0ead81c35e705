"""Removes what killed runs left unfinished among the run folders."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.launch.exits import EXIT_FILE
from harness.runs.records import VERDICT_FILE

NAME = r"\d{8}-\d{6}-\w+-[0-9a-f]{6}"
"""The name of a run folder. Nothing with another name is touched."""


@contextmanager
def shared(runs: Path) -> Iterator[None]:
    """Hold a shared lock on the folder of all runs, as every living run does.

    A run that holds it alone first removes what killed runs left unfinished. The lock is on the
    folder itself, and the kernel frees it with the process.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
        handle = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield  # making the run folder fails too, and reports the reason
        return
    try:
        if _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove_unfinished(runs)
        _locked(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, mode: int) -> bool:
    try:
        fcntl.flock(handle, mode)
    except OSError:  # another run holds it, or the file system has no locks on folders
        return False
    return True


def _remove_unfinished(runs: Path) -> None:
    for folder in runs.glob(".*"):
        if re.fullmatch(rf"\.{NAME}\.\w+", folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    for run in runs.glob("[0-9]*"):
        if re.fullmatch(NAME, run.name) and not (run / VERDICT_FILE).exists():
            for file in _unfinished_files(run):
                file.unlink(missing_ok=True)


def _unfinished_files(run: Path) -> Iterator[Path]:
    yield from run.glob(f".{VERDICT_FILE}.*")
    for depth in ("*", "*/*"):  # the folder of a trial, or of one of its launches
        yield from run.glob(f"{depth}/.{EXIT_FILE}.*")
