"""The tasks of one command on Slurm: submitted, followed, and submitted again if they are lost."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.config.run_config import OnConfig
from harness.sweep import array as arrays
from harness.sweep import slurm
from harness.sweep.array import Array
from harness.sweep.slurm import End, Shape, Waiting
from harness.system.errors import Fault, UserError
from harness.system.terminal import count
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

Say = Callable[[str], object]
"""Shows how far the tasks are."""


class Lost(Fault):
    """Slurm lost a task, each time that it was submitted; nothing is known about the bug."""


@dataclass(frozen=True)
class Work:
    """What a task does."""

    key: str
    """Equal for tasks that do the same: a command goes on with what an earlier one submitted."""
    argument: Any
    shape: Shape


@dataclass(eq=False)
class _Task:
    """One piece of work that has no result yet."""

    index: int
    work: Work
    tries: int = 0
    array: Array | None = None
    name: str = ""
    """Slurm's name of it: ``12_3``."""
    gone: float | None = None
    """Since when (monotonic) it is not in the queue."""
    end: End | None = None


class Batch:
    """Tasks that belong to one command. Leaving its context cancels those that have not ended.

    ``also`` has the keys of work that belongs to the command but needs no task any more: an array
    is owned only by a command to which all of it belongs. ``first`` is a task that the others need.
    """

    def __init__(
        self,
        works: Sequence[Work],
        do: Callable[[Any], Any],
        on: OnConfig,
        say: Say,
        also: Collection[str] = (),
        first: tuple[Callable[[Any], Any], Work] | None = None,
    ) -> None:
        self.do, self.on, self.say, self.first = do, on, say, first
        tasks = [_Task(index, work) for index, work in enumerate(works)]
        self.ours = {work.key for work in works} | set(also)
        if first:
            self.ours.add(first[1].key)
        self.waiting = sorted(tasks, key=lambda task: task.work.shape, reverse=True)
        self.under_way: dict[Array, list[_Task]] = {}
        self.queue = slurm.Queue()
        self.home = arrays.home()
        self.total, self.ended, self.lost = len(works), 0, 0
        self.begun = time.monotonic()
        self._ended_before: int | None = None
        """How many had ended when we came: they say nothing about how long the others take."""
        self._not_before = 0.0
        self._largest = 0
        self._after = ""
        """Slurm's number of the job that does ``first``."""

    def __enter__(self) -> Batch:
        try:
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what has not ended, and delete what was collected, if it is this command's."""
        done = []
        for array, tasks in self.under_way.items():
            if array.owned or (self._all_ours(array) and array.use(own=True)):
                # A first job has no results to wait for.
                if (tasks or array.job == self._after) and not slurm.cancel(array.name):
                    warn(f"not cancelled: scancel --name={array.name}")
                else:
                    done.append(array)
        for array in self.under_way:
            array.leave()
        with suppress(Fault), arrays.alone(self.home):
            for array in done:
                array.delete_unless_used()

    def results(self) -> Iterator[tuple[int, Any]]:
        """The index of each work with its value, or with a Fault, as they end."""
        while True:
            for task, value in self._collected():
                self.ended += 1
                yield task.index, value
            if self.ended == self.total:
                return
            if self._ended_before is None:
                self._ended_before = self.ended
            self._fill()
            self._look()
            time.sleep(POLL)

    def _collected(self) -> Iterator[tuple[_Task, Any]]:
        """The tasks that have ended since the last time."""
        for array, tasks in self.under_way.items():
            try:
                files = set(os.listdir(array.folder)) if tasks else set()
            except OSError:  # deleted by its owner
                files = set()
            for task in list(tasks):
                file = slurm.result_file(task.name)
                found = slurm.result(array.folder / file) if file in files else None
                if found is None and not self._is_lost(task):
                    continue
                tasks.remove(task)
                if found is not None:
                    yield task, found[1] if found[0] else _failed(found[1])
                elif (lost := self._lost(array, task)) is not None:
                    yield task, lost

    def _is_lost(self, task: _Task) -> bool:
        """Whether a task without a result will not give one."""
        if task.gone is None or (gone := time.monotonic() - task.gone) < SETTLE:
            return False
        task.end = task.end or slurm.end_of(task.name)
        return task.end.by_slurm or gone >= GRACE

    def _lost(self, array: Array, task: _Task) -> Lost | None:
        """Let a lost task be submitted again; after TRIES times it is lost, with the reason."""
        why = _why(array, task)
        if not array.owned:  # its owner may have cancelled it
            task.tries = 0
        if task.tries >= TRIES:
            return Lost(f"lost {task.tries} times: {why}")
        self.lost += 1
        task.array, task.gone, task.end = None, None, None
        self.waiting.append(task)
        return None

    def _fill(self) -> None:
        """Submit tasks, as many as may run at the same time; others stay in arrays that wait."""
        if not self._room() or not self.waiting or time.monotonic() < self._not_before:
            return
        with arrays.alone(self.home):
            self._go_on()
            while self.waiting and (room := self._room()):
                try:
                    self._submit(room)
                except (slurm.Unreachable, UserError) as error:  # perhaps a limit of jobs
                    if not any(self.under_way.values()):
                        raise
                    self.say(f"{error}; trying again")
                    self._not_before = time.monotonic() + RETRY
                    return

    def _room(self) -> int:
        """How many more tasks may run at the same time. Arrays get it in their order."""
        room = self.on.most
        for array, tasks in self.under_way.items():
            if not array.owned or array.job == self._after:
                continue
            share = min(len(tasks), room)
            room -= share
            if array.at_once < share and len(array.tasks) > 1:
                slurm.allow(array.job, share)
                array.at_once = share
        return room

    def _go_on(self) -> None:
        """Follow tasks that are under way already: their command died, or waits for them too."""
        waiting = {task.work.key: task for task in self.waiting}
        first = self.first[1].key if self.first else ""
        known = {array.folder.name for array in self.under_way}
        for array in arrays.found(self.home, {*waiting, first}, known):
            array.use(own=self._all_ours(array))
            self.under_way[array] = []
            for number, (key, tries) in enumerate(array.tasks):
                if key == first:
                    self._after = array.job
                task = waiting.get(key)
                if task is None or task.tries >= tries:
                    continue
                if task.array:  # this is a later try
                    self.under_way[task.array].remove(task)
                self._place(task, array, number)
        placed = sum(task.array is not None for task in self.waiting)
        if placed:
            self.waiting = [task for task in self.waiting if task.array is None]
            self.say(f"{count(placed, 'task')} of an earlier command: waiting for them")

    def _place(self, task: _Task, array: Array, number: int) -> None:
        task.array, task.name, task.tries = array, array.task(number), array.tasks[number][1]
        self.under_way[array].append(task)

    def _all_ours(self, array: Array) -> bool:
        return all(key in self.ours for key, _ in array.tasks)

    def _submit(self, room: int) -> None:
        """Submit an array of waiting tasks with the same shape, for so much room."""
        if self.first and not self._after:
            do, work = self.first
            first = self._submitted([(work.key, 1)], do, [work.argument], work.shape, 1)
            self._after = first.job
        self._largest = self._largest or min(slurm.largest_array(), self.on.array)
        shape = self.waiting[0].work.shape
        tasks = [task for task in self.waiting if task.work.shape == shape][: self._largest]
        notes = [(task.work.key, task.tries + 1) for task in tasks]
        array = self._submitted(notes, self.do, [t.work.argument for t in tasks], shape, room)
        for number, task in enumerate(tasks):
            self._place(task, array, number)
        self.waiting = [task for task in self.waiting if task.array is None]

    def _submitted(
        self,
        notes: Sequence[tuple[str, int]],
        do: Callable[[Any], Any],
        arguments: Sequence[Any],
        shape: Shape,
        room: int,
    ) -> Array:
        array = arrays.new(self.home, notes, at_once=room)
        try:
            array.job = slurm.submit(
                do,
                arguments,
                self.on,
                shape,
                name=array.name,
                folder=array.folder,
                at_once=room,
                after=self._after,
            )
            array.write()
        except BaseException:  # sbatch may have been accepted all the same
            slurm.cancel(array.name)
            array.leave()
            array.delete_unless_used()
            raise
        self.under_way[array] = []
        return array

    def _look(self) -> None:
        """Look at the queue, and show how far the tasks are."""
        tasks = [task for of in self.under_way.values() for task in of]
        names = [array.name for array, of in self.under_way.items() if of]
        queue = self.queue.look(names) if names else None
        if queue is None:
            return
        for task in tasks:
            seen = queue.get(task.name)
            going_on = seen is not None and seen.state in slurm.GOING_ON
            task.gone = None if going_on else task.gone or time.monotonic()
        self.say(self._tally(queue))

    def _tally(self, queue: Mapping[str, Waiting]) -> str:
        """``3 queued, 2 running, 7 ended, 4 min left``."""
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
        if ended := self.ended - (self._ended_before or 0):
            rest = (time.monotonic() - self.begun) / ended * (self.total - self.ended)
            parts.append(f"{rest / 60:.0f} min left" if rest > 90 else f"{rest:.0f} s left")
        return ", ".join(parts)


def _failed(traceback: str) -> Fault:
    """A task that ended with an error of ours, which no run has: it says nothing about a bug."""
    lines = traceback.strip().splitlines() or ["no message"]
    return Fault(f"the task failed on its node: {short(lines[-1], 300)}")


def _why(array: Array, task: _Task) -> str:
    """Slurm's words about a lost task, and its own last ones."""
    words = slurm.last_words(array.folder, task.name)
    slurms = f"Slurm task {task.name}: {task.end.words if task.end else 'gone'}"
    if words is None:
        return f"{slurms}; it wrote no log: do all nodes see {array.folder.parent}?"
    return f"{slurms}; its last words: {short(words, 200)}" if words else slurms
