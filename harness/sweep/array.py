"""Job arrays: each has a folder in the shared cache, with a note of its tasks and their results.

The note lets the same command go on after its submitter died. An array is owned by the command that
may cancel it; others that wait for its tasks use it. Both hold a lock of the folder for that, which
the kernel frees if they die.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.sweep import slurm
from harness.system.errors import Fault, UserError
from harness.system.files import locked, write_whole, writing
from harness.system.machine import cache_folder

NOTE, OWNER, USERS = "note.json", "owner.lock", "users.lock"
KEPT = 7 * 24 * 3600.0
"""Seconds that results are kept that nobody collected, as their command died."""


def home() -> Path:
    """This user's folder of arrays in the cache. It is private, because results are unpickled.

    Raises UserError if the cache is read-only: results come through it.
    """
    cache = cache_folder()
    folder = cache / "slurm" / str(os.getuid())
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise UserError(
            f"on=slurm needs a cache that can be written, and that all nodes see: {cache}: "
            f"{error.strerror}; name one with HARNESS_CACHE"
        ) from None
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Fault(f"{folder} is not private to this user: name another HARNESS_CACHE")
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else looks for arrays, submits or deletes one meanwhile."""
    with writing(folder, "HARNESS_CACHE"), locked(folder / "lock"):
        yield


@dataclass(eq=False)
class Array:
    """Tasks that were submitted together."""

    folder: Path
    tasks: Sequence[tuple[str, int]]
    """The key of each, and how often it was submitted, this time included."""
    job: str = ""
    """Slurm's number; empty until Slurm has accepted it."""
    at_once: int = 0
    """How many tasks of it may run at the same time, as far as we know."""
    owned: bool = False
    locks: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        """Its name in Slurm's queue, by which it can be cancelled before its number is known."""
        return f"distributed-bugs-{self.folder.name}"

    def task(self, number: int) -> str:
        """Slurm's name of a task. A single one is no array."""
        return f"{self.job}_{number}" if len(self.tasks) > 1 else self.job

    def write(self) -> None:
        """Write its note."""
        with writing(self.folder, "HARNESS_CACHE"):
            write_whole(
                self.folder / NOTE, json.dumps({"job": self.job, "tasks": self.tasks}) + "\n"
            )

    def use(self, own: bool) -> bool:
        """Keep it from being deleted. With ``own`` become its owner, unless its owner lives."""
        self.locks.enter_context(locked(self.folder / USERS, shared=True))
        if own:
            self.owned = self.locks.enter_context(locked(self.folder / OWNER, wait=False))
        return self.owned

    def leave(self) -> None:
        """Neither use nor own it any more."""
        self.locks.close()
        self.owned = False

    def delete_unless_used(self) -> None:
        """Delete its folder, if no command uses it. Call it ``alone`` and after ``leave``."""
        # The lock is freed first: NFS cannot remove a folder with an open file.
        with locked(self.folder / USERS, wait=False) as unused:
            pass
        if unused:
            shutil.rmtree(self.folder, ignore_errors=True)

    def is_dead(self) -> bool:
        """Whether the command that owns it has ended."""
        with locked(self.folder / OWNER, wait=False) as free:
            return free

    def is_stale(self) -> bool:
        """Whether nothing happened for long, and nothing of it is queued or runs."""
        age = time.time() - self.folder.stat().st_mtime
        return age > KEPT and not slurm.is_queued(self.name)


def new(folder: Path, tasks: Sequence[tuple[str, int]], at_once: int) -> Array:
    """An array that is about to be submitted. Its note comes first: a submitter may die."""
    array = Array(folder / uuid.uuid4().hex[:12], tasks, at_once=at_once)
    with writing(array.folder, "HARNESS_CACHE"):
        array.folder.mkdir(mode=0o700)
        array.use(own=True)
        array.write()
    return array


def found(folder: Path, wanted: Collection[str], without: Collection[str]) -> list[Array]:
    """The arrays with one of the wanted tasks, oldest tries first; removes what is of no use.

    Call it ``alone``. ``without`` has the names of folders that are known already.
    """
    arrays = []
    for each in folder.iterdir():
        if not each.is_dir() or each.name in without:
            continue
        array = _read(each)
        if array is None:  # its submitter died before Slurm's answer, or the note was damaged
            dead = Array(each, ())
            if dead.is_dead():
                slurm.cancel(dead.name)
                dead.delete_unless_used()
        elif any(key in wanted for key, _ in array.tasks):
            arrays.append(array)
        elif array.is_stale():
            array.delete_unless_used()
    return sorted(arrays, key=lambda array: max(tries for _, tries in array.tasks))


def _read(folder: Path) -> Array | None:
    """The array of a folder; None without a valid note of an array that Slurm accepted."""
    try:
        content = json.loads((folder / NOTE).read_text())
        tasks = [(str(key), int(tries)) for key, tries in content["tasks"]]
        job = content["job"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Array(folder, tasks, job) if tasks and isinstance(job, str) and job.isdigit() else None
