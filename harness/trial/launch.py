"""Launching: torchrun in a process group of its own, under a deadline, with a log per rank.

No verdicts here: what comes back is how the processes ended. Whatever happens, every process that
was started is gone afterwards, and that is looked up, not assumed; should the harness itself be
killed, see ``orphans``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from harness.files import ROOT
from harness.spec import Inconclusive, Lane
from harness.trial import orphans
from harness.trial.records import Exit, Identity, write_exit

TOKEN = "HARNESS_TRIAL"
"""The environment variable by which a trial's processes are found again, whoever their parent is:
torchrun gives each rank a session of its own, so ending its process group alone leaves them."""

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

STACK_SECONDS = 2.0
POLL_SECONDS = 0.05


def launch(
    run_folder: Path,
    of: Identity,
    *,
    lane: Lane,
    site: Path,
    extensions: Path,
    timeout: float,
    threads: int,
    devices: Sequence[str] = (),
    tick: Callable[[], None] = lambda: None,
) -> Exit:
    """Run an act of a trial to its end and write its exit.json.

    ``timeout`` is in seconds; ``devices`` are the numbers of the GPUs to use, in the order of the
    PCI bus, empty for those that are visible; ``tick`` is called about twenty times a second
    meanwhile. Raises KeyboardInterrupt through, after everything was ended, and Inconclusive where
    the trial's folder was taken away.
    """
    folder, token = run_folder / of.variant / of.act, uuid.uuid4().hex
    environment = rank_environment(lane, site, extensions, threads, devices) | {TOKEN: token}
    command = torchrun(run_folder, of.variant, of.world_size, of.act)
    started = time.monotonic()
    ended = Exit(code=-signal.SIGKILL, seconds=0.0, interrupted=True)
    try:
        with (folder / "torchrun.log").open("w") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            timed_out = not _wait(process, started + timeout, folder, tick)
        code = process.poll()
        ended = replace(
            ended, interrupted=False, timed_out=timed_out, code=-9 if code is None else code
        )
    finally:
        with _undisturbed():
            ended = _cleaned_up(ended, token, folder)
            ended = replace(ended, seconds=time.monotonic() - started)
            if folder.is_dir():
                write_exit(folder, ended, of)
    return ended


def torchrun(run_folder: Path, variant: str, ranks: int, act: str = "") -> list[str]:
    """The command line of one trial, or of one act of it."""
    logs = run_folder / variant / act / "elastic"
    return [
        sys.executable, "-m", "harness.trial.agent", "--standalone", f"--nproc-per-node={ranks}",
        "--max-restarts=0", f"--log-dir={logs}", "--redirects=3",
        "-m", "harness.trial.rank", str(run_folder), variant, act,
    ]  # fmt: skip


def _cleaned_up(ended: Exit, token: str, folder: Path) -> Exit:
    """End what is left of a trial, and bring its logs and the first failure together."""
    try:
        if ended.timed_out or ended.interrupted:
            _ask_for_stacks(token, folder)
    finally:
        survivors = end_all(token)
    _flatten_logs(folder)
    return replace(ended, survivors=survivors, failure=_failure(folder))


def rank_environment(
    lane: Lane, site: Path, extensions: Path, threads: int, devices: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of torchrun and its ranks; the Python path is built here, not inherited."""
    kept = {k: v for k, v in os.environ.items() if not NOT_INHERITED.match(k)}
    made = {
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # an overlay is immutable
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": str(threads),
        "USE_FLAX": "0",  # transformers imports the JAX and TensorFlow that it finds installed
        "USE_TF": "0",
        "DS_ACCELERATOR": "cuda" if lane is Lane.GPU else "cpu",
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "HARNESS_LAUNCHED": repr(time.monotonic()),  # one clock for all processes of a machine
        orphans.PARENT: str(os.getpid()),
    }
    if lane is Lane.CPU or devices:
        made["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        # Numbers, not UUIDs: DeepSpeed 0.19 reads this variable, and takes nothing else.
        made["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return kept | made


def _wait(
    process: subprocess.Popen[bytes], deadline: float, folder: Path, tick: Callable[[], None]
) -> bool:
    """Wait for torchrun; False if the deadline, of the monotonic clock, came first."""
    while time.monotonic() < deadline:
        try:
            process.wait(POLL_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            tick()
        if not folder.is_dir():  # what is written there proves nothing any more
            raise Inconclusive(f"{folder} was taken away while its trial ran")
    return False


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


def members(token: str) -> list[psutil.Process]:
    """Every living process of a trial, found by its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(TOKEN) == token
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or somebody else's
    return found


def _ask_for_stacks(token: str, folder: Path) -> None:
    """Have every rank that set up its handler dump its stack, and give it time to."""
    waiting = set(folder.glob("stack_rank_*.txt"))
    if not waiting:
        return
    for process in members(token):
        try:
            words = process.cmdline()
            if "harness.trial.rank" in words and "harness.trial.agent" not in words:
                process.send_signal(signal.SIGUSR1)
        except psutil.Error:
            continue  # it went by itself
    deadline = time.monotonic() + STACK_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = {path for path in waiting if not path.stat().st_size}
        time.sleep(POLL_SECONDS)


def end_all(token: str) -> tuple[int, ...]:
    """Kill every process of a trial; the ids of those that are still there five seconds later."""
    deadline = time.monotonic() + 5
    while living := members(token):
        for process in living:
            try:
                process.kill()
            except psutil.Error:
                continue  # it went by itself
        psutil.wait_procs(living, timeout=1)
        if time.monotonic() > deadline:
            break
    return tuple(process.pid for process in living)


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
        return {"rank": rank, "message": _how_it_ended(code)}
    return None


def _exits(log: Path) -> list[tuple[int, int]]:
    """Rank and exit code of every rank that torchrun's log says failed."""
    if not log.is_file():
        return []
    found = re.findall(
        r"^\s*rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)",
        log.read_text(errors="replace"), re.MULTILINE,
    )  # fmt: skip
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
