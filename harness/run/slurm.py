"""Slurm: submits tasks through submitit, looks at the queue, cancels, and says why a task ended.

Accounting is not needed, as ``sacct`` fails where it is switched off: squeue names the tasks that
are queued or running, and ``scontrol show job`` says how one ended. Only ``on=slurm`` imports this
module, and only ``submit`` imports submitit.
"""

from __future__ import annotations

import io
import logging
import pickle
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.run.run_config import OnConfig
from harness.system.errors import Inconclusive, Unsupported, UserError
from harness.system.files import ROOT, writing
from harness.system.installation import install
from harness.system.machine import cache_folder
from harness.system.text import short

SOON, LATER = 2.0, 15.0
"""Seconds between two looks at the queue, at first and after minutes: results are files, so a look
is only needed for the progress and for tasks that were lost."""
SILENT = 600.0
"""Seconds that Slurm's controller may be out of reach, for example while it restarts."""
LIMIT = 60
"""Seconds that a command of Slurm may take."""

QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
GOING_ON = (*QUEUED, "RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING")
"""The states of tasks that may still give a result."""
OUT_OF_REACH = re.compile(r"contact|connect|timed? ?out|temporarily|Zero Bytes|Communication", re.I)
"""What Slurm's commands print if the controller does not answer: nothing is wrong with a job."""


class Unreachable(Inconclusive):
    """Slurm's controller does not answer."""


class Shape(NamedTuple):
    """What a task needs. The tasks of an array have one shape."""

    cores: int
    """On each node."""
    gpus: int
    nodes: int = 1


def submit(
    do: Callable[..., Any],
    arguments: Sequence[Any],
    on: OnConfig,
    shape: Shape,
    *,
    name: str,
    folder: Path,
    at_once: int,
    after: str = "",
) -> str:
    """Submit ``do(argument)`` for each argument as one job array; returns Slurm's number of it.

    The array begins when the job ``after`` has ended. Raises UserError with sbatch's message if
    Slurm refuses it, and Unreachable if the controller does not answer.
    """
    module = submitit()
    executor = module.SlurmExecutor(folder=folder)
    executor.update_parameters(
        job_name=name,
        time=on.time,
        array_parallelism=at_once,
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
        **({"dependency": f"afterany:{after}"} if after else {}),
        additional_parameters=OURS | on.extra,
    )
    with redirect_stderr(io.StringIO()), writing(folder, "HARNESS_CACHE"):
        try:
            with executor.batch():
                jobs = [executor.submit(do, argument) for argument in arguments]
        except (module.core.utils.FailedJobError, subprocess.CalledProcessError) as error:
            raise _refused(str(error)) from None
        except module.core.utils.FailedSubmissionError as error:
            raise _refused(str(error)) from None
    number: str = jobs[0].job_id.partition("_")[0]
    return number


PLAIN = ("partition", "account", "constraint")
"""The settings that submitit takes as they are."""
OURS = {"no-requeue": True, "signal": "CONT@1"}
"""We submit lost tasks again ourselves. Submitit's own signal would end short tasks, and its
handler would requeue others; SIGCONT does nothing."""


def submitit() -> Any:
    """The package submitit. Raises Unsupported without it, or without Slurm's commands."""
    try:
        import submitit as module
    except ModuleNotFoundError:
        raise Unsupported(f"on=slurm needs the package submitit: {install('submitit')}") from None
    for command in ("sbatch", "srun", "scancel", "squeue"):
        if shutil.which(command) is None:
            raise _missing(command)
    logging.getLogger("submitit").setLevel(logging.CRITICAL)  # we say it in one line
    return module


def _missing(command: str) -> Unsupported:
    return Unsupported(f"on=slurm needs Slurm's commands, and {command} is not on the PATH")


def _refused(message: str) -> UserError | Unreachable:
    lines = [line.removeprefix("sbatch: error: ") for line in message.splitlines() if line.strip()]
    text = short("; ".join(lines) or "no message", 300)
    if OUT_OF_REACH.search(text):
        return Unreachable(f"Slurm's controller does not answer: {text}")
    return UserError(f"sbatch refused the tasks: {text}")


def largest_array() -> int:
    """How many tasks Slurm accepts in one array: MaxArraySize, 1001 by default."""
    process = _run(["scontrol", "show", "config"])
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", process.stdout, re.M) if process else None
    return max(1, int(limit[1])) if limit else 1000


def allow(job: str, at_once: int) -> None:
    """Let more tasks of an array run at the same time. It may end meanwhile, so failing is fine."""
    _run(["scontrol", "update", f"JobId={job}", f"ArrayTaskThrottle={at_once}"])


def cancel(name: str) -> bool:
    """Cancel this user's jobs with a name; False if that failed."""
    process = _run(["scancel", "--me", f"--name={name}"])
    return process is not None and process.returncode == 0


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command of Slurm; None if it hangs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    except FileNotFoundError:
        raise _missing(command[0]) from None


class Waiting(NamedTuple):
    """A task in the queue."""

    state: str
    reason: str
    """Why it has not begun: ``Resources``."""


@dataclass
class Queue:
    """Looks at Slurm's queue, but not often."""

    looks: int = 0
    _begun: float = field(default_factory=time.monotonic)
    _next: float = 0.0
    _answered: float = field(default_factory=time.monotonic)

    def look(self, name: str) -> Mapping[str, Waiting] | None:
        """The tasks of a command that are in the queue, by Slurm's name of them; None if it is
        too early for a look, or if there is no answer.

        Raises Unreachable if the controller has not answered for SILENT seconds.
        """
        moment = time.monotonic()
        if moment < self._next:
            return None
        self.looks += 1
        tasks, why = _queued(name)
        moment = time.monotonic()  # the command may have taken a minute
        self._next = moment + min(LATER, max(SOON, (moment - self._begun) / 20))
        if tasks is not None:
            self._answered = moment
        elif moment - self._answered > SILENT:
            raise Unreachable(f"Slurm's controller does not answer: {short(why, 200)}")
        return tasks


def _queued(name: str) -> tuple[dict[str, Waiting] | None, str]:
    """The tasks of a command in the queue; None and the reason without an answer."""
    command = ["squeue", "--noheader", "--array", "--me", f"--name={name}"]
    process = _run([*command, "--format=%i %T %r"])
    if process is None or process.returncode:
        return None, process.stderr.strip() if process else f"squeue took more than {LIMIT} s"
    return tasks_of(process.stdout), ""


def tasks_of(text: str) -> dict[str, Waiting]:
    """The tasks that squeue printed; other lines are ignored."""
    lines = (line.split(None, 2) for line in text.splitlines())
    return {parts[0]: Waiting(parts[1], " ".join(parts[2:])) for parts in lines if len(parts) > 1}


class End(NamedTuple):
    """How a task ended, in Slurm's words."""

    state: str
    """``COMPLETED``, ``TIMEOUT``; empty if Slurm does not know the task any more."""
    words: str
    """``TIMEOUT, TimeLimit, signal 15``."""

    @property
    def by_slurm(self) -> bool:
        """Whether Slurm ended it, so that it has no result."""
        return self.state not in ("", "COMPLETED", "FAILED")


def end_of(task: str) -> End:
    """How a task ended."""
    process = _run(["scontrol", "--oneliner", "show", "job", task])
    return end_in(process.stdout if process else "")


def end_in(text: str) -> End:
    """How a task ended, from what scontrol printed."""
    facts = dict(re.findall(r"(\w+)=(\S+)", text))
    state = facts.get("JobState", "")
    if not state:
        return End("", "Slurm does not know it any more")
    reason = facts.get("Reason", "None")
    status, _, number = facts.get("ExitCode", "0:0").partition(":")
    ended = [f"signal {number}"] if number not in ("", "0") else [f"exit code {status}"]
    words = [state, reason, *ended, f"on {facts.get('NodeList', '(null)')}"]
    return End(state, ", ".join(w for w in words if w not in ("None", "exit code 0", "on (null)")))


def result_file(task: str) -> str:
    """The name of the file in which submitit leaves a result."""
    return f"{task}_0_result.pkl"


def result(file: Path) -> tuple[bool, Any] | None:
    """Whether a task succeeded, and its value or its traceback; None if the file is not readable.

    Unpickling runs code, so the folder must be this user's own.
    """
    try:
        kind, value = pickle.loads(file.read_bytes())
    except Exception:  # half a file on a shared folder, or another release of our code
        return None
    return kind == "success", value


def last_words(folder: Path, task: str) -> str | None:
    """The last line of a task's log; None without a log: the node did not see the folder."""
    try:
        text = (folder / f"{task}_0_log.out").read_text(errors="replace")
    except OSError:
        return None
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
