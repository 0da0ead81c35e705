"""Launching: torchrun in a session of its own, under a deadline, with a log for each rank.

The result says how the processes ended; outcomes are not decided here. Afterwards no process
is left, whatever happened: ``processes`` finds and kills them. If the harness itself is killed,
``supervisor`` ends them.
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
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

from harness.bugs.api.spec import Lane
from harness.rank import supervisor
from harness.rank.exits import Exit, Identity, write_exit
from harness.run.server_pool import ForkedLaunch, OverlayServer
from harness.system.errors import Inconclusive
from harness.system.files import ROOT
from harness.system.launch_token import TOKEN, new_token
from harness.system.processes import ask_for_stacks, end_all, members

RANK = ROOT / "harness" / "rank" / "scenario.py"
RANK_MODULE = "harness.rank.scenario"

NOT_INHERITED = re.compile(
    r"PYTHON(?!UTF8|IOENCODING)|TORCHELASTIC_|PET_|TORCH_NCCL_ASYNC|DS_|PYTEST_|"
    r"(RANK|LOCAL_RANK|GROUP_RANK|ROLE_.*|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)
"""Environment variables that would change how upstream runs, or describe a rank of another job.
``PET_NNODES`` and the like are torchrun's own options, which a cluster's operator may set: with two
nodes, a trial waits for the second until its deadline. pytest's variable contains the name of the
test: each test would start another server, which imports torch again."""

OWN_DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that end a rank for its own reasons. After a failure torchrun sends SIGTERM to the other
ranks, and NCCL's watchdog aborts a rank when another is gone."""

REASON = re.compile(
    r"^(?:\[?[EWI]\d{4} [^]]*\] ?(?:\[c10d\] )?)?"  # as torch's logging begins a line
    r"((?!\S*SignalException)[\w.]+(?:Error|Exception): \S.*|.*Too many open files.*)$",
    re.MULTILINE,
)
"""A line of torchrun's log that says why it failed. A signal from outside is not a reason."""

FEW_FILES = 256
"""Below this limit of open files, a failure message mentions the limit."""

STACK_SECONDS = 2.0
POLL_SECONDS = 0.05
MONITOR_SECONDS = 0.02
"""The interval at which torchrun checks its ranks."""


class Process(Protocol):
    """The torchrun of a launch."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


Start = Callable[[Path, Mapping[str, str], Sequence[str], TextIO], Process]
"""Starts torchrun in a folder, with an environment, its arguments and a log."""


@dataclass(frozen=True)
class RankSettings:
    """What the ranks of a launch use of the machine."""

    lane: Lane
    site: Path
    """The overlay's site-packages."""
    extensions: Path
    """The folder for what ranks compile."""
    threads: int
    python: str = sys.executable
    """The interpreter."""
    devices: tuple[str, ...] = ()
    """The numbers of the GPUs in PCI bus order; empty: all visible ones."""


def launch(
    run_folder: Path,
    trial: Path,
    identity: Identity,
    settings: RankSettings,
    *,
    timeout: float,
    tick: Callable[[], None] = lambda: None,
    server: OverlayServer | None = None,
) -> Exit:
    """Run one launch of a trial, in the folder ``trial``, to its end and write its exit.json.

    ``timeout`` is in seconds; ``tick`` is called about twenty times a second. The processes are
    forked from ``server`` if there is one; otherwise torchrun starts in a new interpreter. Raises
    KeyboardInterrupt if interrupted, and Inconclusive if the trial's folder disappears; in both
    cases after all processes have ended.
    """
    folder = trial / identity.launch
    forked = server is not None
    script = str(RANK) if forked else RANK_MODULE
    words = (script, str(run_folder), identity.variant, identity.launch)
    start: Start = server.start if server else partial(start_cold, settings.python)
    return supervise(
        folder,
        torchrun_arguments(folder, identity.world_size, words, forked=forked),
        rank_environment(settings),
        start,
        ranks=identity.world_size,
        timeout=timeout,
        tick=tick,
        keep=lambda ended: write_exit(folder, ended, identity),
    )


def supervise(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    start: Start,
    *,
    ranks: int,
    timeout: float,
    tick: Callable[[], None] = lambda: None,
    keep: Callable[[Exit], None] = lambda _: None,
) -> Exit:
    """Run torchrun, or another agent, to its end or the deadline, and leave no process behind.

    ``keep`` gets the result even if this is interrupted, unless the folder has disappeared. Raises
    what ``launch`` raises.
    """
    token = new_token()
    started = time.monotonic()
    ended = Exit(code=-signal.SIGKILL, seconds=0.0, interrupted=True)
    process: Process | None = None
    try:
        with (folder / "torchrun.log").open("w") as log:
            process = start(folder, {**environment, TOKEN: token}, arguments, log)
        code = _wait(process, started + timeout, folder, ranks, tick)
        ended = replace(
            ended, interrupted=False, timed_out=code is None, code=-9 if code is None else code
        )
    finally:
        with _signals_deferred():
            if isinstance(process, ForkedLaunch):
                process.cancel()
                ended = replace(ended, preloaded=process.seconds)
            ended = _cleaned_up(ended, token, folder, process)
            ended = replace(ended, seconds=time.monotonic() - started)
            if folder.is_dir():
                keep(ended)
    return ended


def start_cold(
    python: str, folder: Path, environment: Mapping[str, str], arguments: Sequence[str], log: TextIO
) -> subprocess.Popen[bytes]:
    """Start torchrun in a new interpreter."""
    return subprocess.Popen(
        [python, "-m", "harness.rank.agent", *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def torchrun_arguments(
    folder: Path, ranks: int, words: Sequence[str], *, forked: bool = False
) -> list[str]:
    """The arguments of torchrun for a launch in ``folder``.

    ``words`` are what every rank runs: a module and its arguments. Forked ranks run our module as a
    function (``--run-path``), so its file is named instead; each rank of a cold launch is a new
    interpreter.
    """
    return [
        "--standalone",
        "--local-addr=127.0.0.1",  # the host may not know its own name
        f"--log-dir={folder / 'elastic'}",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        f"--monitor-interval={MONITOR_SECONDS}",
        "--redirects=3",
        *(["--start-method=fork", "--run-path"] if forked else ["-m"]),
        *words,
    ]


def _cleaned_up(ended: Exit, token: str, folder: Path, process: Process | None) -> Exit:
    """Kill what is left of a launch, flatten its logs, and find the first failure."""
    try:
        if ended.timed_out or ended.interrupted:
            _dump_stacks(folder, token)
    finally:
        survivors = end_all(token)
    _flatten_logs(folder)
    reason = _reason(folder / "torchrun.log") if ended.code and not ended.interrupted else ""
    if isinstance(process, ForkedLaunch) and ended.code == -signal.SIGKILL and not ended.timed_out:
        reason = process.server.complaint or reason
    return replace(ended, survivors=survivors, failure=_failure(folder), reason=reason)


def rank_environment(settings: RankSettings) -> dict[str, str]:
    """The environment of torchrun and its ranks; the Python path is built here, not inherited."""
    inherited = {k: v for k, v in os.environ.items() if not NOT_INHERITED.match(k)}
    ours = {
        "PYTHONPATH": os.pathsep.join([str(settings.site), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # an overlay is immutable
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": str(settings.threads),
        "USE_FLAX": "0",  # transformers would import an installed JAX or TensorFlow
        "USE_TF": "0",
        "TORCH_EXTENSIONS_DIR": str(settings.extensions),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # count GPUs without CUDA, which breaks forks
        "TORCH_WARM_POOL": "0",  # importing torch must start no process or thread
        "HARNESS_LAUNCHED": repr(time.monotonic()),  # one clock for all processes of a machine
        supervisor.PARENT: str(os.getpid()),
    }
    if settings.lane is Lane.CPU:
        ours["DS_ACCELERATOR"] = "cpu"  # DeepSpeed finds GPUs itself: 0.12 cannot be given "cuda"
    if settings.lane is Lane.CPU or settings.devices:
        ours["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        # Numbers, not UUIDs: DeepSpeed 0.19 reads this variable and accepts only numbers.
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(settings.devices)
    return inherited | ours


def _wait(
    process: Process, deadline: float, folder: Path, ranks: int, tick: Callable[[], None]
) -> int | None:
    """Wait for torchrun; returns its exit code, or None at the deadline, in monotonic seconds."""
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
        tick()
        if (
            isinstance(process, ForkedLaunch)
            # torchrun makes the folders of ranks right before it starts them
            and len(list(folder.glob("elastic/*/attempt_0/*"))) == ranks
            and process.lost_a_rank(ranks)
        ):
            return 0  # the records show whether the ranks were done
        if not folder.is_dir():
            raise Inconclusive(f"{folder} was removed while its trial ran")
    return process.poll()


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer Ctrl-C and the like: a second one must not stop the clean-up after the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [n for n in ending if callable(signal.getsignal(n))]
    before = {n: signal.signal(n, lambda number, _: late.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if late:
            raise KeyboardInterrupt


def _dump_stacks(folder: Path, token: str) -> None:
    """Ask the ranks for their stacks, and wait for them."""
    waiting = set(folder.glob("stack_rank_*.txt"))
    if not waiting:
        return
    ask_for_stacks(members(token))
    deadline = time.monotonic() + STACK_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = {path for path in waiting if not path.stat().st_size}
        time.sleep(POLL_SECONDS)


def _flatten_logs(folder: Path) -> None:
    """Move torchrun's ``elastic/ID/attempt_0/RANK/*`` to ``logs/rank_RANK/*``."""
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
    """The rank that failed first. A killed rank leaves no error file, but its neighbours do
    ("connection reset"): so a death in torchrun's log takes precedence over error files."""
    log = folder / "torchrun.log"
    pairs = re.findall(  # of every failed rank
        r"^\s*rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)",
        log.read_text(errors="replace") if log.is_file() else "",
        re.MULTILINE,
    )
    exits = [(int(rank), int(code)) for rank, code in pairs]
    killed = [(rank, code) for rank, code in exits if -code in OWN_DEATHS]
    errors = [_error(path) for path in folder.glob("logs/rank_*/error.json")]
    if errors and not killed:
        return min(errors, key=lambda error: error["at"])
    for rank, code in killed or exits[-1:]:  # torchrun names its root cause last
        why = "" if code < 0 else _reason(log)
        ending = f"left with exit code {code}"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            ending = f"was ended by {names.get(-code, f'signal {-code}')}"  # real-time: no name
        return {"rank": rank, "message": ending + (why and f": {why}")}
    return None


def _reason(log: Path) -> str:
    """Why torchrun itself failed, from its log; empty if the log has no reason.

    With a low limit of open files, the limit is added: torchrun may only report "Failed to init uv
    loop".
    """
    line = REASON.search(log.read_text(errors="replace")) if log.is_file() else None
    few = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = f"; a process may open {few} files here (ulimit -n)" if few < FEW_FILES else ""
    return line[1].strip() + limit if line else ""


def _error(path: Path) -> dict[str, Any]:
    """A rank's error file. ``at`` is the file's own time, as its content has only whole seconds."""
    rank = int(path.parent.name.removeprefix("rank_"))
    try:
        message = json.loads(path.read_text())["message"]
        if isinstance(message, dict):
            message = message["message"]
    except (ValueError, KeyError):
        message = "its error file is cut off"
    return {"rank": rank, "at": path.stat().st_mtime, "message": str(message)}
