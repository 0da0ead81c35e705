"""Slurm: submits tasks through submitit, and follows them by files and by squeue.

Accounting is not needed: ``sacct`` fails where it is switched off. A task has finished when
submitit has written its result; squeue says which tasks are queued or running; ``scontrol show
job`` says why a task has ended without a result. Only ``on=slurm`` imports this module.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import Inconclusive, Unsupported, UserError
from harness.files import ROOT
from harness.run_config import OnConfig
from harness.text import short

NAME = "distributed-bugs"
"""The name of our jobs in the queue."""
LOOK_EVERY = 2.0
"""Seconds between two looks at the queue."""
GRACE = 10.0
"""Seconds for a result to appear on a shared file system after its task has left the queue."""
SILENT = 600.0
"""Seconds that Slurm's controller may be out of reach, for example while it restarts."""
COMMAND_LIMIT = 60
"""Seconds that a command of Slurm may take."""

QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
GOING_ON = (*QUEUED, "RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING")
"""The states of tasks that may still give a result."""


@dataclass
class Submitted:
    """A task that was submitted, perhaps by an earlier command that ended early."""

    job: str
    """Slurm's name of the task: ``12_3``."""
    folder: Path
    """Where submitit writes its log and its result."""
    gone_since: float | None = None
    """Since when (monotonic) it is neither in the queue nor has a result."""

    @property
    def result_file(self) -> Path:
        return self.folder / f"{self.job}_0_result.pkl"

    def result(self) -> tuple[bool, Any] | None:
        """Whether it succeeded, and its value or its traceback; None without a complete result."""
        try:
            kind, value = pickle.loads(self.result_file.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        return kind == "success", value

    @property
    def last_words(self) -> str:
        """The last line of its log, or of what it printed."""
        log = self.folder / f"{self.job}_0_log.out"
        text = log.read_text(errors="replace") if log.is_file() else ""
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def submit(
    do: Callable[..., Any], arguments: Sequence[Any], on: OnConfig, cores: int, gpus: int, to: Path
) -> list[Submitted]:
    """Submit ``do(argument)`` for each argument, as one job array of tasks with so many cores and
    GPUs. Raises UserError with sbatch's message if Slurm refuses it."""
    submitit = _submitit()
    executor = submitit.SlurmExecutor(folder=to)
    executor.update_parameters(
        job_name=NAME,
        time=on.time,
        array_parallelism=on.most,
        cpus_per_task=on.cpus or cores,
        stderr_to_stdout=True,
        setup=[f"export PYTHONPATH={_quoted(ROOT)}${{PYTHONPATH:+:$PYTHONPATH}}"],
        srun_args=["--nodes=1", "--ntasks=1"],
        **{name: value for name in PLAIN if (value := getattr(on, name))},
        **({"gpus_per_node": gpus} if gpus else {}),
        additional_parameters=_extra(on.extra) | {"no_requeue": True},  # we submit again ourselves
    )
    try:
        with executor.batch():
            jobs = [executor.submit(do, argument) for argument in arguments]
    except subprocess.CalledProcessError as error:
        raise UserError(f"sbatch refused the jobs: {_message(error)}") from None
    except submitit.core.utils.FailedJobError as error:
        raise UserError(f"sbatch refused the jobs: {short(str(error), 300)}") from None
    return [Submitted(job.job_id, to) for job in jobs]


PLAIN = ("partition", "account", "constraint")
"""The settings that submitit takes as they are."""


def _submitit() -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise Unsupported(
            "on=slurm needs the package submitit: python -m pip install submitit"
        ) from None
    return submitit


def _extra(options: Iterable[str]) -> dict[str, Any]:
    """Further options of sbatch: ``qos=debug``, or ``exclusive`` without a value."""
    pairs = [option.lstrip("-").partition("=") for option in options]
    return {name: value if sign else True for name, sign, value in pairs}


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _message(error: subprocess.CalledProcessError) -> str:
    text = error.stderr or error.output or ""
    return short(text if isinstance(text, str) else text.decode(errors="replace"), 300)


@dataclass
class Queue:
    """Looks at Slurm's queue, not more often than every LOOK_EVERY seconds."""

    looks: int = 0
    _states: Mapping[str, str] = field(default_factory=dict)
    _next: float = 0.0
    _answered: float = field(default_factory=time.monotonic)

    def look(self) -> Mapping[str, str] | None:
        """The states of our tasks by name; None if there is nothing new to see.

        Raises Inconclusive if the controller has not answered for SILENT seconds.
        """
        now = time.monotonic()
        if now < self._next:
            return None
        self._next, self.looks = now + LOOK_EVERY, self.looks + 1
        command = ["squeue", "--noheader", "--array", "--me", f"--name={NAME}", "--format=%i %T"]
        done = _run(command)
        if done is None or done.returncode:
            if now - self._answered > SILENT:
                why = short(done.stderr, 200) if done else "no answer"
                raise Inconclusive(f"Slurm's controller does not answer: {why}")
            return None
        self._answered = now
        return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command of Slurm; None if it hangs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT)
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise Unsupported(
            f"on=slurm needs Slurm's commands: {command[0]}: {error.strerror}"
        ) from None


def cancel(jobs: Iterable[Submitted]) -> None:
    """Cancel exactly these tasks."""
    names = [each.job for each in jobs]
    for at in range(0, len(names), 500):  # a command line has an end
        _run(["scancel", *names[at : at + 500]])


def reason(job: Submitted) -> str:
    """Why a task has ended without a result: Slurm's own words, and the last line of its log."""
    done = _run(["scontrol", "--oneliner", "show", "job", job.job])
    facts = dict(re.findall(r"(\w+)=(\S+)", done.stdout)) if done and done.stdout else {}
    state = facts.get("JobState", "it is no longer known to Slurm")
    why = facts.get("Reason", "None")
    words = [state, *([why] if why != "None" else []), *_exit(facts.get("ExitCode", "0:0"))]
    return f"Slurm task {job.job}: {', '.join(words)}" + (
        f"; its last words: {short(job.last_words, 200)}" if job.last_words else ""
    )


def _exit(code: str) -> list[str]:
    status, _, signal = code.partition(":")
    return (
        [f"signal {signal}"]
        if signal not in ("", "0")
        else [f"exit code {status}"] * (status != "0")
    )
