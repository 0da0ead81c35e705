"""The tasks of one command on Slurm: submitted, followed, and submitted again if they are lost.

A task stores what it finds, so nothing here outlives its command: the same command again finds
what is stored, and submits the rest.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.run import slurm
from harness.run.run_config import OnConfig
from harness.run.slurm import End, Shape, Waiting
from harness.system.errors import Fault, UserError
from harness.system.files import writing
from harness.system.machine import cache_folder, refuse_unless_private
from harness.system.text import short, warn

TRIES = 2
"""How often a task is submitted that Slurm loses."""
POLL = 0.5
"""Seconds between two looks for results, which are files."""
SETTLE = 2.0
"""Seconds after a task has left the queue until Slurm is asked how it ended."""
GRACE = 60.0
"""Seconds for the result of a task that ended by itself: an NFS client may see a new file that
late (acdirmax)."""
RETRY = 30.0
"""Seconds until tasks are submitted again after the controller did not answer."""
KEPT = 7 * 24 * 3600.0
"""Seconds until the folder of a command that was killed is deleted. Its tasks may still read it."""

Say = Callable[[str], object]
"""Shows how far the tasks are."""


class Lost(Fault):
    """Slurm lost a task, each time that it was submitted; nothing is known about the bug."""


def home() -> Path:
    """This user's folder of tasks in the cache. It is private, because results are unpickled.

    Raises UserError if the cache is read-only: results come through it.
    """
    cache = cache_folder()
    folder = cache / "slurm" / str(os.getuid())
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        attributes = folder.stat()
    except OSError as error:
        raise UserError(
            f"on=slurm needs a cache that can be written, and that all nodes see: {cache}: "
            f"{error.strerror}; name one with HARNESS_CACHE"
        ) from None
    refuse_unless_private(folder, attributes)
    return folder


@dataclass(frozen=True)
class Work:
    """What a task does."""

    argument: Any
    shape: Shape


@dataclass(eq=False)
class _Task:
    """One piece of work that has no result yet."""

    index: int
    work: Work
    tries: int = 0
    name: str = ""
    """Slurm's name of it: ``12_3``."""
    gone: float | None = None
    """Since when (monotonic) it is not in the queue."""
    end: End | None = None


@dataclass(eq=False)
class _Array:
    """Tasks that were submitted together."""

    job: str
    folder: Path
    """Where their results appear."""
    tasks: list[_Task]
    """Those without a result."""
    single: bool
    at_once: int
    """How many tasks of it may run at the same time."""


class Batch:
    """Tasks that belong to one command. Leaving its context cancels those that have not ended.

    ``first`` is a task that the others need.
    """

    def __init__(
        self,
        works: Sequence[Work],
        do: Callable[[Any], Any],
        on: OnConfig,
        say: Say,
        first: tuple[Callable[[Any], Any], Work] | None = None,
    ) -> None:
        self.do, self.on, self.say, self.first = do, on, say, first
        tasks = [_Task(index, work) for index, work in enumerate(works)]
        self.waiting = sorted(tasks, key=lambda task: task.work.shape, reverse=True)
        self.arrays: list[_Array] = []
        self.queue = slurm.Queue()
        self.folder = home() / uuid.uuid4().hex[:8]
        self.name = f"distributed-bugs-{self.folder.name}"
        """The name of all its jobs, by which they can be cancelled."""
        self.total, self.ended, self.lost = len(works), 0, 0
        self.begun = time.monotonic()
        self._not_before = 0.0
        self._largest = 0
        self._after = ""
        """Slurm's number of the job that does ``first``."""

    def __enter__(self) -> Batch:
        slurm.submitit()  # refuses a machine without it before anything is written
        _delete_old(self.folder.parent)
        try:
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what has not ended: also what Slurm accepted without our seeing its answer."""
        if not slurm.cancel(self.name) and self.arrays:
            warn(f"not cancelled: scancel --name={self.name}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def results(self) -> Iterator[tuple[int, Any]]:
        """The index of each work with its value, or with a Fault, as they end."""
        while True:
            for task, value in self._collected():
                self.ended += 1
                yield task.index, value
            if self.ended == self.total:
                return
            self._fill()
            self._look()
            time.sleep(POLL)

    def _collected(self) -> Iterator[tuple[_Task, Any]]:
        """The tasks that have ended since the last time."""
        for array in self.arrays:
            files = _names(array.folder) if array.tasks else ()
            for task in list(array.tasks):
                file = slurm.result_file(task.name)
                outcome = slurm.result(array.folder / file) if file in files else None
                if outcome is None and not self._is_lost(task):
                    continue
                array.tasks.remove(task)
                if outcome is not None:
                    yield task, outcome[1] if outcome[0] else _failed(outcome[1])
                elif (lost := self._lost(array, task)) is not None:
                    yield task, lost

    def _is_lost(self, task: _Task) -> bool:
        """Whether a task without a result will not give one."""
        if task.gone is None or (gone := time.monotonic() - task.gone) < SETTLE:
            return False
        task.end = task.end or slurm.end_of(task.name)
        return task.end.by_slurm or gone >= GRACE

    def _lost(self, array: _Array, task: _Task) -> Lost | None:
        """Let a lost task be submitted again; after TRIES times return Lost, with the reason."""
        if task.tries >= TRIES:
            return Lost(f"lost {task.tries} times: {_why(array, task)}")
        self.lost += 1
        task.gone, task.end = None, None
        self.waiting.append(task)
        return None

    def _fill(self) -> None:
        """Submit tasks, as many as may run at the same time."""
        if not self.waiting or time.monotonic() < self._not_before:
            return
        while self.waiting and (room := self._room()):
            try:
                self._submit(room)
            except (slurm.Unreachable, UserError) as error:  # perhaps a limit of jobs
                if not any(array.tasks for array in self.arrays):
                    raise
                self.say(f"{error}; trying again")
                self._not_before = time.monotonic() + RETRY
                return

    def _room(self) -> int:
        """How many more tasks may run at the same time. Arrays get it in their order."""
        room = self.on.most
        for array in self.arrays:
            share = min(len(array.tasks), room)
            room -= share
            if array.at_once < share and not array.single:
                slurm.allow(array.job, share)
                array.at_once = share
        return room

    def _submit(self, room: int) -> None:
        """Submit an array of waiting tasks with the same shape; ``room`` of them run at once."""
        if self.first and not self._after:
            do, work = self.first
            self._after, _ = self._submitted(do, [work], 1)
        self._largest = self._largest or min(slurm.largest_array(), self.on.array)
        shape = self.waiting[0].work.shape
        tasks = [task for task in self.waiting if task.work.shape == shape][: self._largest]
        job, folder = self._submitted(self.do, [task.work for task in tasks], room)
        single = len(tasks) == 1
        for number, task in enumerate(tasks):
            task.name = job if single else f"{job}_{number}"
            task.tries += 1
            self.waiting.remove(task)
        self.arrays.append(_Array(job, folder, tasks, single, room))

    def _submitted(
        self, do: Callable[[Any], Any], works: Sequence[Work], room: int
    ) -> tuple[str, Path]:
        """Submit an array; returns Slurm's number of it, and the folder of its results."""
        folder = self.folder / uuid.uuid4().hex[:8]
        with writing(folder, "HARNESS_CACHE"):
            folder.mkdir(parents=True, mode=0o700)
        job = slurm.submit(
            do,
            [work.argument for work in works],
            self.on,
            works[0].shape,
            name=self.name,
            folder=folder,
            at_once=room,
            after=self._after,
        )
        return job, folder

    def _look(self) -> None:
        """Look at the queue, and show how far the tasks are."""
        queue = self.queue.look(self.name)
        if queue is None:
            return
        with suppress(OSError):
            os.utime(self.folder)  # it is in use, see _delete_old
        for array in self.arrays:
            for task in array.tasks:
                entry = queue.get(task.name)
                going_on = entry is not None and entry.state in slurm.GOING_ON
                task.gone = None if going_on else task.gone or time.monotonic()
        self.say(self._tally(queue))

    def _tally(self, queue: Mapping[str, Waiting]) -> str:
        """``3 queued, 2 running, 7 ended, 4 min left; jobs distributed-bugs-1a2b3c4d``."""
        queued = [task for task in queue.values() if task.state in slurm.QUEUED]
        running = len(queue) - len(queued)
        parts = [
            f"{len(queued) + len(self.waiting)} queued",
            f"{running} running",
            f"{self.ended} ended",
        ]
        if queued and not running:
            ((reason, _),) = Counter(task.reason for task in queued).most_common(1)
            parts[0] += f" ({reason})"
        if self.lost:
            parts.append(f"{self.lost} lost and submitted again")
        if self.ended:
            wait = (time.monotonic() - self.begun) / self.ended * (self.total - self.ended)
            parts.append(f"{wait / 60:.0f} min left" if wait > 90 else f"{wait:.0f} s left")
        return f"{', '.join(parts)}; jobs {self.name}"


def _names(folder: Path) -> Collection[str]:
    """The files of a folder; none if somebody deleted it: then its tasks are lost."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return ()


def _delete_old(folder: Path) -> None:
    """Delete the folders of commands that were killed long ago; running ones touch theirs."""
    with suppress(OSError):
        for subfolder in folder.iterdir():
            if time.time() - subfolder.stat().st_mtime > KEPT:
                shutil.rmtree(subfolder, ignore_errors=True)


def _failed(traceback: str) -> Fault:
    """The fault of a task that failed in our own code: it says nothing about a bug."""
    lines = traceback.strip().splitlines() or ["no message"]
    return Fault(f"the task failed on its node: {short(lines[-1], 300)}")


def _why(array: _Array, task: _Task) -> str:
    """What Slurm says about a lost task, and the last line of the task's log."""
    words = slurm.last_words(array.folder, task.name)
    slurms = f"Slurm task {task.name}: {task.end.words if task.end else 'gone'}"
    if words is None:
        return f"{slurms}; it wrote no log: do all nodes see {array.folder.parent}?"
    return f"{slurms}; its last words: {short(words, 200)}" if words else slurms
