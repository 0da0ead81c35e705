"""Cells and runs as tasks of Slurm, for ``on=slurm``: submitted once, followed, and collected.

A note in the shared cache names each task that is under way. A command that dies loses nothing: the
same command finds the notes, and waits for what still runs instead of submitting it again.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness import catalog, machine
from harness.errors import Fault, HarnessError, Inconclusive, UserError
from harness.files import locked, write_whole, writing
from harness.machine import cache_folder
from harness.report import Progress, terminal
from harness.run_config import RunConfig
from harness.spec import Lane
from harness.sweep import cell_store, cells, slurm, suite
from harness.sweep.cell import Cell
from harness.sweep.slurm import Submitted
from harness.sweep.suite import Done
from harness.trial.job import stack_of
from harness.trial.records import digest
from harness.upstream import overlay

TRIES = 2
"""How often a task is submitted that Slurm loses."""
POLL = 0.2
"""Seconds between two looks for results, which are files."""


class Lost(Inconclusive):
    """Slurm lost a task, each time that it was submitted."""


Result = Any
"""The value of a task, or the HarnessError that ended it."""


def find_all(
    configs: Sequence[RunConfig], *, again: bool, failed: cells.Failed | None
) -> Generator[tuple[int, Cell], None, None]:
    """The cells of many configs, as ``cells.find_all``: stored ones first, then tasks of Slurm."""
    cache, missing = cache_folder(), []
    for index, config in enumerate(configs):
        stored = None if again else _stored(config, cache)
        if stored:
            yield index, stored
        else:
            missing.append(index)
    if not missing:
        return
    wanted = [configs[index] for index in missing]
    cells.make_overlays(wanted, again=again)
    with Batch(wanted, cell_task, again) as batch:
        for at, found in batch.results():
            if isinstance(found, (UserError, Fault)) and failed:
                failed(missing[at], found)
            elif isinstance(found, UserError):
                raise found
            else:
                yield missing[at], _cell(wanted[at], found)


def _stored(config: RunConfig, cache: Path) -> Cell | None:
    with suppress(HarnessError):  # the task meets the error again, and reports it
        found = cell_store.read(cache, _inputs(config, cache))
        return replace(found, stored=True) if found else None
    return None


def _inputs(config: RunConfig, cache: Path) -> dict[str, Any]:
    return cell_store.inputs_of(config, stack_of(config, "released", cache))


def _cell(config: RunConfig, found: Cell | HarnessError) -> Cell:
    return cells.not_run(config, found) if isinstance(found, HarnessError) else found


def cell_task(config: RunConfig) -> Cell | HarnessError:
    """What a node does for a cell."""
    _stage(config)
    try:
        return cells.find(config, cache_folder(), again=True, faults=True)
    except HarnessError as error:
        return error


def run_task(config: RunConfig) -> tuple[str, Done] | HarnessError:
    """What a node does for a run: returns what it prints, and how it ended."""
    _stage(config)
    return suite.run_in_block(config)


def _stage(config: RunConfig) -> None:
    """Let overlays be copied to the node's own disk, if that is wanted."""
    if config.on.stage:
        os.environ[overlay.STAGE] = tempfile.gettempdir()


@contextmanager
def started(configs: Sequence[RunConfig]) -> Iterator[dict[str, Future[tuple[str, Done]]]]:
    """Submit runs of several scenarios; yields a future for each, as ``suite.started`` does.

    Leaving the context cancels those that have not ended.
    """
    futures: dict[str, Future[tuple[str, Done]]] = {c.scenario: Future() for c in configs}
    stop = threading.Event()
    with (
        Batch(configs, run_task, again=False, stop=stop) as batch,
        ThreadPoolExecutor(1) as follower,
    ):

        def follow() -> None:
            try:
                for at, found in batch.results():
                    futures[configs[at].scenario].set_result(_done(configs[at], found))
            except BaseException as error:
                for future in futures.values():
                    if not future.done():
                        future.set_exception(error)

        follower.submit(follow)
        try:
            yield futures
        finally:
            stop.set()


def _done(config: RunConfig, found: tuple[str, Done] | HarnessError) -> tuple[str, Done]:
    if not isinstance(found, HarnessError):
        return found
    return f"{config.scenario}: {found}\n", suite.not_run(config.scenario, found)


@dataclass
class _Task:
    """One config under way."""

    key: str
    job: Submitted | None = None
    tries: int = 0
    owned: bool = True
    """Whether this command submitted it, or took it over; otherwise another command waits for it
    too, and it is not ours to cancel."""


class Batch:
    """Tasks that belong to one command. Leaving its context cancels those that have not ended."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        do: Callable[[RunConfig], Result],
        again: bool,
        stop: threading.Event | None = None,
    ) -> None:
        self.configs, self.do, self.on = configs, do, configs[0].on
        self.stop = stop or threading.Event()
        self.folder = machine.own_folder(cache_folder(), "slurm")
        self.command = uuid.uuid4().hex
        self.queue = slurm.Queue()
        self.tasks = [_Task(_key(config, do, again)) for config in configs]
        self.begun = time.monotonic()
        self.resources = ExitStack()

    def __enter__(self) -> Batch:
        """Take over the tasks of a command that died, and submit the others."""
        with writing(self.folder, "HARNESS_CACHE"):
            (self.folder / "tasks").mkdir(parents=True, exist_ok=True)
            self.resources.enter_context(locked(self._alive(self.command)))
        try:
            for task in self.tasks:
                self._take_over(task)
            self._submit([task for task in self.tasks if task.job is None])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        left = [task for task in self.tasks if task.job and task.owned]
        if left:
            slurm.cancel(task.job for task in left if task.job)
            for task in left:
                self._note(task).unlink(missing_ok=True)
        self.resources.close()

    def _alive(self, command: str) -> Path:
        """The file that a command holds locked as long as it lives."""
        return self.folder / "commands" / f"{command}.lock"

    def _note(self, task: _Task) -> Path:
        return self.folder / "tasks" / f"{task.key}.json"

    def _take_over(self, task: _Task) -> None:
        """Use the task that an earlier command submitted for the same, if there is one."""
        try:
            note = json.loads(self._note(task).read_text())
        except (OSError, ValueError):
            return
        job = Submitted(note["job"], Path(note["folder"]))
        task.job, task.tries = job, note["tries"]
        with locked(self._alive(note["command"]), wait=False) as is_dead:
            task.owned = is_dead
        if task.owned:
            self._write(task, job)

    def _write(self, task: _Task, job: Submitted) -> None:
        content = {
            "job": job.job,
            "folder": str(job.folder),
            "tries": task.tries,
            "command": self.command,
        }
        with writing(self.folder, "HARNESS_CACHE"):
            write_whole(self._note(task), json.dumps(content) + "\n")

    def _submit(self, tasks: Sequence[_Task]) -> None:
        if not tasks:
            return
        configs = [self.configs[self.tasks.index(task)] for task in tasks]
        jobs = slurm.submit(
            self.do,
            configs,
            self.on,
            cores=max(map(_cores, configs)),
            gpus=max(map(_gpus, configs)),
            to=self.folder / "jobs" / self.command,
        )
        for task, job in zip(tasks, jobs, strict=True):
            task.job, task.tries, task.owned = job, task.tries + 1, True
            self._write(task, job)

    def results(self) -> Iterator[tuple[int, Result]]:
        """The index of each config with its result, as they end.

        Raises KeyboardInterrupt once ``stop`` is set.
        """
        with Progress(terminal()) as progress:
            while any(task.job for task in self.tasks):
                for n, task in enumerate(self.tasks):
                    if task.job and (found := self._result(task, task.job)) is not None:
                        yield n, found
                self._look(progress)
                if self.stop.is_set():
                    raise KeyboardInterrupt
                time.sleep(POLL)

    def _result(self, task: _Task, job: Submitted) -> Result | None:
        """The result of a task, which is then forgotten; None while it goes on."""
        found = job.result()
        if found is None:
            gone = job.gone_since
            lost = gone is not None and time.monotonic() - gone > slurm.GRACE
            return self._lost(task, job) if lost else None
        success, value = found
        if not success and ENDED_EARLY in str(value):
            return self._lost(task, job)
        self._forget(task)
        return value if success else Inconclusive(f"the task failed: {_last_line(str(value))}")

    def _lost(self, task: _Task, job: Submitted) -> Lost | None:
        """Submit a lost task again; after TRIES times its result is Slurm's reason."""
        why = slurm.reason(job)
        if task.tries < TRIES:
            self._submit([task])
            return None
        self._forget(task)
        return Lost(f"lost {task.tries} times: {why}")

    def _forget(self, task: _Task) -> None:
        task.job = None
        if task.owned:
            self._note(task).unlink(missing_ok=True)

    def _look(self, progress: Progress) -> None:
        """Look at the queue, and show how far the tasks are."""
        states = self.queue.look()
        if states is None:
            return
        left = [task.job for task in self.tasks if task.job]
        for job in left:
            going_on = states.get(job.job) in slurm.GOING_ON
            job.gone_since = None if going_on else job.gone_since or time.monotonic()
        queued = sum(states.get(job.job) in slurm.QUEUED for job in left)
        ended = len(self.tasks) - len(left)
        elapsed = time.monotonic() - self.begun
        rest = f", about {elapsed / ended * len(left) / 60:.0f} min left" if ended else ""
        progress.say(f"{queued} queued, {len(left) - queued} running, {ended} ended{rest}")


ENDED_EARLY = "UncompletedJobError"
"""What submitit writes if Slurm announces the end of a task: out of time, or preempted."""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _key(config: RunConfig, do: Callable[..., Any], again: bool) -> str:
    """Equal for tasks that do the same; new for each task that must be done again."""
    if again or config.params is None:
        return uuid.uuid4().hex
    about = {
        "do": do.__name__,
        "command": config.command,
        "scenario": config.scenario,
        "variants": config.variants,
        "pins": dict(config.pins),
        "params": asdict(config.params),
        "seed": config.seed,
        "runs": str(config.runs),
        "code": cell_store.code(config.scenario),
    }
    return digest(about)


def _cores(config: RunConfig) -> int:
    """The cores for a run: one for each thread of its ranks."""
    return _ranks(config) * config.launch.threads


def _gpus(config: RunConfig) -> int:
    """The GPUs for a run: as chosen, otherwise one for each rank."""
    if config.launch.lane != Lane.GPU.value:
        return 0
    return config.on.gpus or _ranks(config)


def _ranks(config: RunConfig) -> int:
    if config.params is None:  # a broken scenario
        return 1
    return max(catalog.scenario(config.scenario).ranks_of(v) for v in config.variants)
