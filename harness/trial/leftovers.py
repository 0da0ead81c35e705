"""What runs that were killed left half-made among the run folders, removed by the next run."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.trial.records import EXIT_FILE, VERDICT_FILE

NAME = r"\d{8}-\d{6}-\w+-[0-9a-f]{6}"
"""Of a run folder: nothing of another name is ever touched."""


@contextmanager
def shared(runs: Path) -> Iterator[None]:
    """Hold the folder of all runs together with every other run that lives.

    Who finds nobody else there first removes what killed runs left half-made. The lock is on the
    folder itself, and the kernel frees it with the process.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
        handle = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield  # a run folder cannot be made there either, and that will say why
        return
    try:
        if _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove_half_made(runs)
        _locked(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, mode: int) -> bool:
    try:
        fcntl.flock(handle, mode)
    except OSError:  # somebody lives there, or the file system has no locks on folders
        return False
    return True


def _remove_half_made(runs: Path) -> None:
    for aside in runs.glob(".*"):
        if re.fullmatch(rf"\.{NAME}\.\w+", aside.name):
            shutil.rmtree(aside, ignore_errors=True)
    for run in runs.glob("[0-9]*"):
        if re.fullmatch(NAME, run.name) and not (run / VERDICT_FILE).exists():
            for aside in _files_half_written(run):
                aside.unlink(missing_ok=True)


def _files_half_written(run: Path) -> Iterator[Path]:
    yield from run.glob(f".{VERDICT_FILE}.*")
    for depth in ("*", "*/*"):  # a trial's folder, or that of one of its launches
        yield from run.glob(f"{depth}/.{EXIT_FILE}.*")
