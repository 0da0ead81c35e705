"""The tasks of a command on Slurm: submitit sends them as job arrays; their results are files.

A task stores what it finds, so nothing here outlives its command: the same command again finds
what is stored, and sends the rest. Slurm itself starts the tasks of a failed node again. Accounting
is not needed, as ``sacct`` fails where it is switched off: squeue names the tasks that are queued
or running, and ``scontrol show job`` says how one ended. Only ``on=slurm`` imports this module.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
import pickle
import re
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.run.run_config import OnConfig
from harness.system.errors import Fault, Inconclusive, Unsupported, UserError
from harness.system.files import ROOT, writing
from harness.system.installation import install
from harness.system.machine import cache_folder, refuse_unless_private
from harness.system.text import short, warn

POLL = 0.5
"""Seconds between two looks for results, which are files."""
SOON, LATER = 2.0, 15.0
"""Seconds between two looks at the queue, at first and after minutes: only tasks that were lost
need one."""
SILENT = 600.0
"""Seconds that Slurm's controller may be out of reach, for example while it restarts."""
SETTLE = 2.0
"""Seconds after a task has left the queue until Slurm is asked how it ended."""
GRACE = 60.0
"""Seconds for the result of a task that ended by itself: an NFS client may see a new file that
late (acdirmax)."""
KEPT = 7 * 24 * 3600.0
"""Seconds until the folder of a command that was killed is deleted. Its tasks may still read it."""
LIMIT = 60
"""Seconds that a command of Slurm may take."""

PLAIN = ("partition", "account", "constraint")
"""The settings that submitit takes as they are."""
OURS = {"requeue": True, "signal": "CONT@1"}
"""Slurm starts the tasks of a failed node again. Submitit's own signal would end short tasks;
SIGCONT does nothing."""
OUT_OF_REACH = re.compile(r"contact|connect|timed? ?out|temporarily|Zero Bytes|Communication", re.I)
"""What Slurm's commands print if the controller does not answer: nothing is wrong with a job."""

Say = Callable[[str], object]
"""Shows how far the tasks are."""


class Lost(Fault):
    """Slurm ended a task; nothing is known about the bug."""


class Unreachable(Inconclusive):
    """Slurm's controller does not answer."""


class Shape(NamedTuple):
    """What a task needs. The tasks of an array have one shape."""

    cores: int
    """On each node."""
    gpus: int
    nodes: int = 1


class Work(NamedTuple):
    """What a task does."""

    argument: Any
    shape: Shape


def results(
    works: Sequence[Work], do: Callable[[Any], Any], on: OnConfig, say: Say
) -> Generator[tuple[int, Any]]:
    """Do works on Slurm; yields the index of each with its value, or with a Fault, as they end.

    The tasks with the largest shape go first, and an array is sent when the one before has ended.
    Closing the generator cancels what has not ended, also what Slurm accepted without our seeing
    its answer.
    """
    submitit()  # refuses a machine without it before anything is written
    _delete_old(home())
    folder = home() / uuid.uuid4().hex[:8]
    name = f"distributed-bugs-{folder.name}"
    """The name of all jobs, by which they can be cancelled."""
    tasks, ended = list[str](), 0
    order = sorted(range(len(works)), key=lambda i: works[i].shape, reverse=True)
    try:
        for shape, group in itertools.groupby(order, key=lambda index: works[index].shape):
            waiting = list(group)
            while waiting:
                indices, waiting = waiting[: on.array], waiting[on.array :]
                arguments = [works[index].argument for index in indices]
                with writing(folder, "HARNESS_CACHE"):
                    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
                send = partial(submit, do, arguments, on, shape, name=name, folder=folder)
                tasks = _answered(send, SILENT if tasks else 0.0)  # the controller may restart
                say(f"{ended} of {len(works)} tasks ended; jobs {name}")
                for task, value in _ended(tasks, folder, name):
                    ended += 1
                    say(f"{ended} of {len(works)} tasks ended; jobs {name}")
                    yield indices[tasks.index(task)], value
    finally:
        if not cancel(name) and tasks:
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


def _delete_old(folder: Path) -> None:
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
    for command in ("sbatch", "srun", "scancel", "squeue", "scontrol"):
        if shutil.which(command) is None:
            raise Unsupported(f"on=slurm needs Slurm's commands, and {command} is not on the PATH")
    logging.getLogger("submitit").setLevel(logging.CRITICAL)  # we say it in one line
    return module


def submit(
    do: Callable[..., Any],
    arguments: Sequence[Any],
    on: OnConfig,
    shape: Shape,
    *,
    name: str,
    folder: Path,
) -> list[str]:
    """Submit ``do(argument)`` for each argument as one job array; returns Slurm's names of the
    tasks: ``12_3``.

    Raises UserError with sbatch's message if Slurm refuses it, and Unreachable if the controller
    does not answer.
    """
    module = submitit()
    executor = module.SlurmExecutor(folder=folder)
    executor.update_parameters(
        job_name=name,
        time=on.time,
        array_parallelism=on.most,
        cpus_per_task=on.cpus or shape.cores,
        nodes=shape.nodes,
        ntasks_per_node=1,  # the task runs on the first node, and starts steps on all of them
        stderr_to_stdout=True,
        use_srun=False,  # a step gets one core, and cannot start steps of its own
        setup=[
            f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"export HARNESS_CACHE={shlex.quote(str(cache_folder()))}",
        ],
        **{name: value for name in PLAIN if (value := getattr(on, name))},
        **({"gpus_per_node": shape.gpus} if shape.gpus else {}),
        additional_parameters=OURS | on.extra,
    )
    errors = module.core.utils
    failures = (errors.FailedJobError, errors.FailedSubmissionError, subprocess.CalledProcessError)
    with redirect_stderr(io.StringIO()), writing(folder, "HARNESS_CACHE"):
        try:
            with executor.batch():
                jobs = [executor.submit(do, argument) for argument in arguments]
        except failures as error:
            raise _refused(str(error)) from None
    return [job.job_id for job in jobs]


def _answered(send: Callable[[], list[str]], seconds: float) -> list[str]:
    """The tasks that were sent; waits so long for a controller that does not answer."""
    begun = time.monotonic()
    while True:
        try:
            return send()
        except Unreachable:
            if time.monotonic() - begun >= seconds:
                raise
        time.sleep(LATER)


def _refused(message: str) -> UserError | Unreachable:
    lines = [line.removeprefix("sbatch: error: ") for line in message.splitlines() if line.strip()]
    text = short("; ".join(lines) or "no message", 300)
    if OUT_OF_REACH.search(text):
        return Unreachable(f"Slurm's controller does not answer: {text}")
    return UserError(f"sbatch refused the tasks: {text}")


def _ended(tasks: Sequence[str], folder: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The tasks with their values or Faults, as they end.

    Raises Unreachable if the controller has not answered for SILENT seconds.
    """
    waiting, gone = set(tasks), dict[str, float]()
    """When (monotonic) a task was first missing in the queue."""
    begun = answered = next_look = time.monotonic()
    while waiting:
        files = set[str]()
        with suppress(OSError):  # a shared folder may be out of reach for a moment
            files = set(os.listdir(folder))
        for task in sorted(waiting):
            file = result_file(task)
            value = result(folder / file) if file in files else None
            if value is None and task in gone:
                value = _lost(task, folder, time.monotonic() - gone[task])
            if value is not None:
                waiting.remove(task)
                yield task, value[0]
        if waiting and (moment := time.monotonic()) >= next_look:
            queue, error = queued(name)
            next_look = time.monotonic() + min(LATER, max(SOON, (moment - begun) / 20))
            if queue is not None:
                answered = time.monotonic()
                gone = {task: gone.get(task, answered) for task in waiting - queue}
                with suppress(OSError):
                    os.utime(folder)  # it is in use, see _delete_old
            elif time.monotonic() - answered > SILENT:
                raise Unreachable(f"Slurm's controller does not answer: {short(error, 200)}")
        time.sleep(POLL if waiting else 0)


def result_file(task: str) -> str:
    """The name of the file in which submitit leaves a result."""
    return f"{task}_0_result.pkl"


def result(file: Path) -> tuple[Any] | None:
    """The value of a task, or the fault that ended it; None if the file is not readable.

    Unpickling runs code, so the folder must be this user's own.
    """
    try:
        kind, value = pickle.loads(file.read_bytes())
    except Exception:  # half a file on a shared folder, or another release of our code
        return None
    if kind == "success":
        return (value,)
    line = (value.strip().splitlines() or ["no message"])[-1]
    return (Fault(f"the task failed on its node: {short(line, 300)}"),)


def _lost(task: str, folder: Path, seconds: float) -> tuple[Lost] | None:
    """Why a task without a result has left the queue; None while a result may still appear."""
    if seconds < SETTLE:
        return None
    state, reason = end_of(task)
    if state in ("", "COMPLETED", "FAILED") and seconds < GRACE:
        return None
    why = f"lost: Slurm task {task}: {reason}"
    try:
        log = (folder / f"{task}_0_log.out").read_text(errors="replace")
    except OSError:
        return (Lost(f"{why}; it wrote no log: do all nodes see {folder}?"),)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return (Lost(f"{why}; its last words: {short(lines[-1], 200)}" if lines else why),)


def end_of(task: str) -> tuple[str, str]:
    """How a task ended, in Slurm's words: ``TIMEOUT``, and ``TIMEOUT, TimeLimit, signal 15``. The
    first is empty if Slurm does not know the task any more."""
    process = _run("scontrol", "--oneliner", "show", "job", task)
    facts = dict(re.findall(r"(\w+)=(\S+)", process.stdout if process else ""))
    if not (state := facts.get("JobState", "")):
        return "", "Slurm does not know it any more"
    status, _, number = facts.get("ExitCode", "0:0").partition(":")
    code = f"signal {number}" if number not in ("", "0") else f"exit code {status}"
    words = [state, facts.get("Reason", "None"), code, f"on {facts.get('NodeList', '(null)')}"]
    return state, ", ".join(w for w in words if w not in ("None", "exit code 0", "on (null)"))


def queued(name: str) -> tuple[set[str] | None, str]:
    """The tasks of a command in the queue, by Slurm's name; None and the reason without answer."""
    process = _run("squeue", "--noheader", "--array", "--me", f"--name={name}", "--format=%i")
    if process is None or process.returncode:
        return None, process.stderr.strip() if process else f"squeue took more than {LIMIT} s"
    return set(process.stdout.split()), ""


def cancel(name: str) -> bool:
    """Cancel this user's jobs with a name; False if that failed."""
    process = _run("scancel", "--me", f"--name={name}")
    return process is not None and process.returncode == 0


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command of Slurm; None if it hangs."""
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    return None
