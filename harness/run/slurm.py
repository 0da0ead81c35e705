"""The tasks of a command on Slurm: submitit sends them as job arrays; their results are files.

A task stores what it finds, so nothing here outlives its command: the same command again finds
what is stored, and sends the rest. Slurm itself starts the tasks of a failed node again. Submitit
learns from ``sacct`` that a task was lost, which fails where accounting is switched off: squeue
names the tasks that are queued or running. Only ``on=slurm`` imports this module.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from harness.run.run_config import OnConfig
from harness.system.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from harness.system.files import ROOT, writing
from harness.system.installation import install
from harness.system.machine import cache_folder, refuse_unless_private
from harness.system.terminal import terminal
from harness.system.text import count, short, warn

POLL = 0.5
"""Seconds between two looks for results, which are files."""
QUEUE_POLL = 15.0
"""Seconds between two looks at the queue: only tasks that were lost need one."""
SILENT = 600.0
"""Seconds that Slurm's controller may be out of reach, for example while it restarts."""
GRACE = 60.0
"""Seconds for the result of a task that has left the queue: an NFS client may see a new file that
late (acdirmax)."""
KEPT = 7 * 24 * 3600.0
"""Seconds until the folder of a command that was killed is deleted. Its tasks may still read it."""
LIMIT = 60
"""Seconds that a command of Slurm may take."""

OURS = {"requeue": True, "signal": "CONT@1"}
"""Slurm starts the tasks of a failed node again. Submitit's own signal would end short tasks;
SIGCONT does nothing."""


class Lost(Fault):
    """Slurm ended a task; nothing is known about the bug."""


class Unreachable(Inconclusive):
    """Slurm's controller does not answer."""


class Shape(NamedTuple):
    """What a task needs. The tasks of an array have one shape."""

    cores: int
    gpus: int


class Work(NamedTuple):
    """What a task does."""

    argument: Any
    shape: Shape


def results(
    works: Sequence[Work], do: Callable[[Any], Any], on: OnConfig
) -> Generator[tuple[int, Any]]:
    """Do works on Slurm; yields the index of each as it ends, with its value or a HarnessError.

    The tasks with the largest shape go first, and an array is sent when the one before has ended.
    Closing the generator cancels what has not ended, also what Slurm accepted without our seeing
    its answer.
    """
    submitit()  # refuses a machine without it before anything is written
    delete_old(home())
    folder = home() / uuid.uuid4().hex[:8]
    name = f"distributed-bugs-{folder.name}"
    """The name of all jobs, by which they can be cancelled."""
    with writing(folder, "HARNESS_CACHE"):
        folder.mkdir(mode=0o700)
    terminal().print(f"... {count(len(works), 'task')} on Slurm, in jobs with the name {name}")
    order = sorted(range(len(works)), key=lambda i: works[i].shape, reverse=True)
    jobs = list[Any]()
    try:
        for shape, group in itertools.groupby(order, key=lambda index: works[index].shape):
            waiting = list(group)
            while waiting:
                indices, waiting = waiting[: on.array], waiting[on.array :]
                arguments = [works[index].argument for index in indices]
                jobs = _submitted(do, arguments, on, shape, name, folder)
                for at, value in _ended(jobs, folder, name):
                    yield indices[at], value
    finally:
        if _asked("scancel", "--me", f"--name={name}") is None and jobs:
            warn(f"not cancelled: scancel --name={name}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


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


def delete_old(folder: Path) -> None:
    """Delete the folders of commands that were killed long ago; running ones touch theirs."""
    with suppress(OSError):
        for subfolder in folder.iterdir():
            if time.time() - subfolder.stat().st_mtime > KEPT:
                shutil.rmtree(subfolder, ignore_errors=True)


def submitit() -> Any:
    """The package submitit. Raises Unsupported without it, or without Slurm's commands."""
    try:
        import submitit as module
    except ModuleNotFoundError:
        raise Unsupported(f"on=slurm needs the package submitit: {install('submitit')}") from None
    for command in ("sbatch", "srun", "scancel", "squeue"):
        if shutil.which(command) is None:
            raise Unsupported(f"on=slurm needs Slurm's commands, and {command} is not on the PATH")
    logging.getLogger("submitit").setLevel(logging.CRITICAL)  # we say it in one line
    return module


def _submitted(
    do: Callable[[Any], Any],
    arguments: Sequence[Any],
    on: OnConfig,
    shape: Shape,
    name: str,
    folder: Path,
) -> list[Any]:
    """Submitit's jobs, which do ``do(argument)`` for each argument: one job array.

    Raises UserError with sbatch's message if Slurm refuses it, and Unreachable if the controller
    does not answer.
    """
    module = submitit()
    executor = module.SlurmExecutor(folder=folder)
    settings = {name: getattr(on, name) for name in ("partition", "account", "constraint")}
    executor.update_parameters(
        job_name=name,
        time=on.time,
        array_parallelism=on.most,
        cpus_per_task=on.cpus or shape.cores,
        nodes=1,
        ntasks_per_node=1,
        stderr_to_stdout=True,
        use_srun=False,  # a step gets one core
        setup=[
            f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"export HARNESS_CACHE={shlex.quote(str(cache_folder()))}",
        ],
        **{name: value for name, value in settings.items() if value},
        **({"gpus_per_node": shape.gpus} if shape.gpus else {}),
        additional_parameters=OURS | on.extra,
    )
    errors = module.core.utils
    failures = (errors.FailedJobError, errors.FailedSubmissionError, subprocess.CalledProcessError)
    with redirect_stderr(io.StringIO()), writing(folder, "HARNESS_CACHE"):
        try:
            with executor.batch():
                return [executor.submit(_on_node, do, argument) for argument in arguments]
        except failures as error:
            lines = str(error).splitlines()
            words = [line.removeprefix("sbatch: error: ") for line in lines if line.strip()]
            why = short("; ".join(words) or "no message", 300)
    if _queued(name) is None:
        raise Unreachable(f"Slurm's controller does not answer: {why}")
    raise UserError(f"sbatch refused the tasks: {why}")


def _on_node(do: Callable[[Any], Any], argument: Any) -> Any:
    """What a task does. Slurm's SIGTERM ends a run with its ranks, as Ctrl-C does; submitit would
    ignore it. Then the task has no result, and its log says why."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return do(argument)
    except HarnessError as error:
        return error
    except KeyboardInterrupt:
        raise SystemExit(1) from None  # without a traceback, Slurm's reason ends the log


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _ended(jobs: Sequence[Any], folder: Path, name: str) -> Iterator[tuple[int, Any]]:
    """The index of each job with its value or a Fault, as they end.

    Raises Unreachable if the controller has not answered for SILENT seconds.
    """
    waiting, gone = dict(enumerate(jobs)), dict[int, float]()
    """When (monotonic) a task was first missing in the queue."""
    answered = looked = time.monotonic()
    while waiting:
        files, moment = set[str](), time.monotonic()
        with suppress(OSError):  # a shared folder may be out of reach for a moment
            files = set(os.listdir(folder))
        for index, job in list(waiting.items()):
            if job.paths.result_pickle.name in files:
                yield index, _value(job)
            elif moment - gone.get(index, moment) > GRACE:
                yield index, _lost(job)
            else:
                continue
            del waiting[index]
        if waiting and moment - looked >= QUEUE_POLL:
            looked, queue = moment, _queued(name)
            if queue is not None:
                answered = moment
                lost = [index for index, job in waiting.items() if job.job_id not in queue]
                gone = {index: gone.get(index, moment) for index in lost}
                with suppress(OSError):
                    os.utime(folder)  # it is in use, see delete_old
            elif moment - answered > SILENT:
                raise Unreachable("Slurm's controller does not answer")
        time.sleep(POLL if waiting else 0)


def _value(job: Any) -> Any:
    """The value of a task, or the fault that ended it."""
    kind, value = submitit().core.utils.pickle_load(job.paths.result_pickle)
    if kind == "success":
        return value
    line = (value.strip().splitlines() or ["no message"])[-1]
    return Fault(f"the task failed on its node: {short(line, 300)}")


def _lost(job: Any) -> Lost:
    """Why a task without a result has left the queue. Slurm writes its reason into the log."""
    why = f"lost: Slurm task {job.job_id} has no result"
    try:
        log = job.paths.stdout.read_text(errors="replace")
    except OSError:
        return Lost(f"{why} and wrote no log: do all nodes see {job.paths.folder}?")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if line.startswith("slurmstepd: ")] or lines
    return Lost(f"{why}; its last words: {short(lines[-1], 200)}" if lines else why)


def _queued(name: str) -> set[str] | None:
    """The tasks of a command in the queue, by Slurm's name: ``12_3``; None without an answer."""
    words = ("--noheader", "--array", "--me", f"--name={name}", "--format=%i")
    queue = _asked("squeue", *words)
    return None if queue is None else set(queue.split())


def _asked(*command: str) -> str | None:
    """The output of a command of Slurm; None if it fails or hangs."""
    with suppress(subprocess.TimeoutExpired):
        process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        return None if process.returncode else process.stdout
    return None
