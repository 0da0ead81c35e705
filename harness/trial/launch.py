"""Launching: torchrun in a process group of its own, under a deadline, with a log per rank.

No verdicts here: what comes back is how the processes ended. Whatever happens, every process that
was started is gone afterwards, and that is looked up, not assumed; should the harness itself be
killed, see ``orphans``.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import psutil

from harness.errors import Inconclusive
from harness.files import ROOT
from harness.spec import Lane
from harness.trial import supervisor
from harness.trial.processes import TOKEN, end_all, hearing, new_token
from harness.trial.records import Exit, Identity, write_exit
from harness.trial.servers import ForkedLaunch, OverlayServer

RANK = Path(__file__).with_name("rank.py")
RANK_MODULE = "harness.trial.rank"

NOT_INHERITED = re.compile(
    r"PYTHON(?!UTF8|IOENCODING)|TORCHELASTIC_|PET_|TORCH_NCCL_ASYNC|DS_|"
    r"(RANK|LOCAL_RANK|GROUP_RANK|ROLE_.*|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)
"""What would change how upstream runs, or says that this is a rank of somebody else's job.
``PET_NNODES`` and the like are torchrun's own options, as a cluster's operator sets them: with two
nodes in it, a trial waited for the second until its deadline."""

OWN_DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that end a rank for a reason of its own. torchrun sends SIGTERM to those that are left,
and NCCL's watchdog aborts a rank when another is gone."""

REASON = re.compile(
    r"^(?:\[?[EWI]\d{4} [^]]*\] ?(?:\[c10d\] )?)?"  # as torch's logging begins a line
    r"((?!\S*SignalException)[\w.]+(?:Error|Exception): \S.*|.*Too many open files.*)$",
    re.MULTILINE,
)
"""A line of torchrun's log that says why it failed. The signal that ends it is no reason."""

FEW_FILES = 256
"""Files that a process may open at least, for nobody to think of that limit."""

STACK_SECONDS = 2.0
POLL_SECONDS = 0.05
MONITOR_SECONDS = 0.02
"""How often torchrun looks at its ranks."""


class Process(Protocol):
    """A trial's torchrun, as far as a launch has to do with it."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


@dataclass(frozen=True)
class Surroundings:
    """Where a trial's processes run: what they see of the machine, and what they may use of it."""

    lane: Lane
    site: Path
    """The overlay's site-packages."""
    extensions: Path
    """Where ranks keep what they compile."""
    threads: int
    devices: tuple[str, ...] = ()
    """The numbers of the GPUs, in the order of the PCI bus; none: those that are visible."""


def launch(
    run_folder: Path,
    of: Identity,
    around: Surroundings,
    *,
    timeout: float,
    tick: Callable[[], None] = lambda: None,
    server: OverlayServer | None = None,
) -> Exit:
    """Run a launch of a trial to its end and write its exit.json.

    ``timeout`` is in seconds; ``tick`` is called about twenty times a second meanwhile. With a
    server the trial is forked from it, else it is a torchrun of its own. Raises KeyboardInterrupt
    through, after everything was ended, and Inconclusive where the trial's folder was taken away.
    """
    folder, token = run_folder / of.variant / of.launch, new_token()
    environment = {**rank_environment(around), TOKEN: token}
    arguments = torchrun(run_folder, of, forked=server is not None)
    started = time.monotonic()
    ended = Exit(code=-signal.SIGKILL, seconds=0.0, interrupted=True)
    process: Process | None = None
    try:
        with (folder / "torchrun.log").open("w") as log:
            start = server.start if server else cold
            process = start(folder, environment, arguments, log)
        code = _wait(process, started + timeout, folder, of.world_size, tick)
        ended = replace(
            ended, interrupted=False, timed_out=code is None, code=-9 if code is None else code
        )
    finally:
        with _undisturbed():
            if isinstance(process, ForkedLaunch):
                process.give_up()
                ended = replace(ended, preloaded=process.seconds)
            ended = _cleaned_up(ended, token, folder)
            ended = replace(ended, seconds=time.monotonic() - started)
            if folder.is_dir():
                write_exit(folder, ended, of)
    return ended


def cold(
    folder: Path, environment: Mapping[str, str], arguments: Sequence[str], log: TextIO
) -> subprocess.Popen[bytes]:
    """Start a torchrun of a trial's own, in an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness.trial.agent", *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def torchrun(run_folder: Path, of: Identity, *, forked: bool = False) -> list[str]:
    """The arguments of torchrun for a launch of a trial.

    Forked ranks run our module as a function, as torchrun does with ``--run-path``; those of a cold
    launch are interpreters of their own.
    """
    logs = run_folder / of.variant / of.launch / "elastic"
    how = ["--start-method=fork", "--run-path", str(RANK)] if forked else ["-m", RANK_MODULE]
    return [
        "--standalone",
        "--local-addr=127.0.0.1",  # not by its host's name, which may be nobody's
        f"--nproc-per-node={of.world_size}",
        "--max-restarts=0",
        f"--monitor-interval={MONITOR_SECONDS}",
        f"--log-dir={logs}",
        "--redirects=3",
        *how,
        str(run_folder),
        of.variant,
        of.launch,
    ]


def _cleaned_up(ended: Exit, token: str, folder: Path) -> Exit:
    """End what is left of a trial, and bring its logs and the first failure together."""
    try:
        if ended.timed_out or ended.interrupted:
            _ask_for_stacks(token, folder)
    finally:
        survivors = end_all(token)
    _flatten_logs(folder)
    reason = _reason(folder / "torchrun.log") if ended.code and not ended.interrupted else ""
    return replace(ended, survivors=survivors, failure=_failure(folder), reason=reason)


def rank_environment(around: Surroundings) -> dict[str, str]:
    """The environment of torchrun and its ranks; the Python path is built here, not inherited."""
    kept = {k: v for k, v in os.environ.items() if not NOT_INHERITED.match(k)}
    made = {
        "PYTHONPATH": os.pathsep.join([str(around.site), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # an overlay is immutable
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": str(around.threads),
        "USE_FLAX": "0",  # transformers imports the JAX and TensorFlow that it finds installed
        "USE_TF": "0",
        "DS_ACCELERATOR": "cuda" if around.lane is Lane.GPU else "cpu",
        "TORCH_EXTENSIONS_DIR": str(around.extensions),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # to count GPUs must not begin CUDA: it bears no fork
        "TORCH_WARM_POOL": "0",  # a process and a thread that compile, for who only imports torch
        "HARNESS_LAUNCHED": repr(time.monotonic()),  # one clock for all processes of a machine
        supervisor.PARENT: str(os.getpid()),
    }
    if around.lane is Lane.CPU or around.devices:
        made["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        # Numbers, not UUIDs: DeepSpeed 0.19 reads this variable, and takes nothing else.
        made["CUDA_VISIBLE_DEVICES"] = ",".join(around.devices)
    return kept | made


def _wait(
    process: Process, deadline: float, folder: Path, ranks: int, tick: Callable[[], None]
) -> int | None:
    """Wait for torchrun; its exit code, or None if the deadline came first: the clock's is one that
    nobody sets."""
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
        tick()
        if (
            isinstance(process, ForkedLaunch)
            and _started(folder) == ranks
            and process.deserted(ranks)
        ):
            return 0  # what they left behind says whether they were done
        if not folder.is_dir():  # what is written there proves nothing any more
            raise Inconclusive(f"{folder} was taken away while its trial ran")
    return process.poll()


def _started(folder: Path) -> int:
    """How many ranks torchrun has made a folder for, which it does right before it starts them."""
    return len(list(folder.glob("elastic/*/attempt_0/*")))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Have Ctrl-C and its like wait: a second one must not stop what the first one asked for."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [n for n in asked if callable(signal.getsignal(n))]
    before = {n: signal.signal(n, lambda number, _: late.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if late:
            raise KeyboardInterrupt


def _ask_for_stacks(token: str, folder: Path) -> None:
    """Have every rank that set up its handler dump its stack, and give it time to."""
    waiting = set(folder.glob("stack_rank_*.txt"))
    if not waiting:
        return
    for process in hearing(token, signal.SIGUSR1):
        with suppress(psutil.Error):  # it went by itself
            process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + STACK_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = {path for path in waiting if not path.stat().st_size}
        time.sleep(POLL_SECONDS)


def _flatten_logs(folder: Path) -> None:
    """Bring torchrun's ``elastic/ID/attempt_0/RANK/*`` to ``logs/rank_RANK/*``."""
    for rank in folder.glob("elastic/*/attempt_0/*"):
        if rank.is_dir():
            target = folder / "logs" / f"rank_{rank.name}"
            target.parent.mkdir(exist_ok=True)
            rank.rename(target)
    shutil.rmtree(folder / "elastic", ignore_errors=True)
    for stack in folder.glob("stack_rank_*.txt"):
        if not stack.stat().st_size:
            stack.unlink()


def _failure(folder: Path) -> dict[str, Any] | None:
    """The rank that failed first. One that was killed leaves no error file, but its neighbours'
    "connection reset" does: so its death, in torchrun's log, goes before what they say."""
    exits = _exits(folder / "torchrun.log")
    killed = [(rank, code) for rank, code in exits if -code in OWN_DEATHS]
    errors = [_error(path) for path in folder.glob("logs/rank_*/error.json")]
    if errors and not killed:
        return min(errors, key=lambda error: error["at"])
    for rank, code in killed or exits[-1:]:  # torchrun names its root cause last
        why = "" if code < 0 else _reason(folder / "torchrun.log")
        return {"rank": rank, "message": _how_it_ended(code) + (why and f": {why}")}
    return None


def _reason(log: Path) -> str:
    """Why torchrun itself failed, in its own words; empty where its log does not say.

    They may be "Failed to init uv loop", where all that is wrong is the limit of open files.
    """
    found = REASON.search(log.read_text(errors="replace")) if log.is_file() else None
    few = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = f"; a process may open {few} files here (ulimit -n)" if few < FEW_FILES else ""
    return found[1].strip() + limit if found else ""


def _exits(log: Path) -> list[tuple[int, int]]:
    """Rank and exit code of every rank that torchrun's log says failed."""
    if not log.is_file():
        return []
    found = re.findall(
        r"^\s*rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)",
        log.read_text(errors="replace"),
        re.MULTILINE,
    )
    return [(int(rank), int(code)) for rank, code in found]


def _error(path: Path) -> dict[str, Any]:
    """What a rank's error file says; ``at`` is the file's own time, as its content has seconds."""
    rank = int(path.parent.name.removeprefix("rank_"))
    try:
        message = json.loads(path.read_text())["message"]
        if isinstance(message, dict):
            message = message["message"]
    except (ValueError, KeyError):
        message = "its error file is cut off"
    return {"rank": rank, "at": path.stat().st_mtime, "message": str(message)}


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"left with exit code {code}"
