"""The kinds of faults, each with its documented exit codes.

Exit code 0 is right if a fault came too late or does no harm; ``case`` then checks the verdict.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.rank.manifest import MANIFEST
from harness.releases import overlay
from harness.system.machine import cache_folder
from harness.system.processes import handling
from tests.chaos.case import Case
from tests.overlays import copy, lent
from tests.sandbox import fill

DEADLINE = "launch.timeout=60"
"""For faults that a run either survives or that end it at once."""
WHILE = 6.0
"""About the seconds of a command: a fault comes at any time within them."""
MOMENT = 0.8
"""About the seconds that a rank lives once it has started; forked ranks do not import anything."""
KILLED = -signal.SIGKILL


class Skip(Exception):
    """This machine cannot make the fault; the message says why."""


@dataclass(frozen=True)
class Kind:
    """One way to disturb a run."""

    name: str
    codes: frozenset[int]
    """The documented exit codes."""
    disturb: Callable[[Case], None]
    """Starts the command and disturbs it, without waiting for its end."""


KINDS: list[Kind] = []


def kind(name: str, *codes: int) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    def add(disturb: Callable[[Case], None]) -> Callable[[Case], None]:
        KINDS.append(Kind(name, frozenset(codes), disturb))
        return disturb

    return add


def _kinds_of_signals() -> None:
    """Any signal may end a rank, torchrun and a server; the harness handles its signals."""
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT):
        kind(f"rank {number.name}", 0, 3)(_signalled(Case.rank, number, MOMENT))
        kind(f"torchrun {number.name}", 0, 3)(_signalled(Case.torchrun, number, MOMENT))
        kind(f"forkserver {number.name}", 0, 3)(_signalled(Case.forkserver, number, WHILE))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        kind(f"harness {number.name}", 0, 130)(_signalled(_harness, number, WHILE))
    kind("harness SIGKILL", 0, KILLED)(_signalled(_harness, signal.SIGKILL, WHILE))
    for who, most in ((Case.rank, MOMENT), (Case.torchrun, MOMENT), (Case.forkserver, WHILE)):
        stopped = _signalled(who, signal.SIGSTOP, most, "launch.timeout=15")
        kind(f"{who.__name__} stopped until the deadline", 0, 3)(stopped)


def _signalled(
    who: Callable[[Case], psutil.Process | None],
    number: signal.Signals,
    most: float,
    deadline: str = DEADLINE,
) -> Callable[[Case], None]:
    def disturb(case: Case) -> None:
        case.start(deadline)
        process = who(case)
        case.pause(most)
        case.signal(process, number)

    return disturb


def _harness(case: Case) -> psutil.Process | None:
    """The command, once it handles SIGTERM: before that, a signal just ends it."""
    case.pause(WHILE)
    try:
        while case.harness.poll() is None:
            for process in handling([psutil.Process(case.harness.pid)], signal.SIGTERM):
                return process
            case.pause(0.1)
    except psutil.NoSuchProcess:
        pass
    return None


_kinds_of_signals()


@kind("rank stopped for a while", 0)
def _stopped_for_a_while(case: Case) -> None:
    case.start("launch.timeout=100")
    process = case.rank()
    case.pause(MOMENT)
    case.signal(process, signal.SIGSTOP)
    time.sleep(case.random.uniform(0, 5))
    case.signal(process, signal.SIGCONT)


@kind("deadline too short", 3)
def _too_short(case: Case) -> None:
    """Shorter than any import of torch."""
    case.start(f"launch.timeout={case.random.uniform(0.1, 0.9):.1f}")


# Evidence that is changed


def _changed(name: str, change: Callable[[Path], None]) -> None:
    def disturb(case: Case) -> None:
        case.start(DEADLINE)
        case.records()
        case.pause(MOMENT)
        try:
            file = case.random.choice(case.records())
            before = file.stat().st_size
            change(file)
            if not file.exists() or file.stat().st_size != before:
                case.touched = time.time()
        except (IndexError, FileNotFoundError):
            case.late = True

    kind(f"records {name}", 0, 3)(disturb)


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _cut_a_line(file: Path) -> None:
    os.truncate(file, file.read_bytes().rpartition(b"\n")[0].rfind(b"\n") + 1)


_changed("deleted", Path.unlink)
_changed("truncated", _truncate)
_changed("less a line", _cut_a_line)
_changed("read-only", lambda file: file.chmod(0o444))


@kind("run folder deleted", 0, 3)
def _deleted(case: Case) -> None:
    case.start(DEADLINE)
    _remove_run(case)


@kind("run folder made a file", 0, 3)
def _made_a_file(case: Case) -> None:
    case.start(DEADLINE)
    folder = _remove_run(case)
    if folder:
        folder.touch()


def _remove_run(case: Case) -> Path | None:
    folder = case.run_folder()
    case.pause(WHILE)
    if folder is None or case.harness.poll() is not None:
        case.late = True
        return None
    case.touched = time.time()
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# A resource is exhausted


@kind("disk full", 0, 3)
def _disk_full(case: Case) -> None:
    case.sandbox.runs = case.log / "tmpfs" / "runs"
    case.sandbox.runs.mkdir(parents=True)
    _mount(case, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(case.sandbox.runs.parent))
    case.start(DEADLINE)
    case.pause(2 * WHILE)
    fill(case.sandbox.runs.parent)


def _mount(case: Case, *words: str) -> None:
    if os.geteuid() or shutil.which("mount") is None:
        raise Skip("mounting needs root")
    if subprocess.run(["mount", *words], capture_output=True).returncode:
        raise Skip("mounting is not allowed here")
    case.undo.append(lambda: subprocess.run(["umount", "-l", words[-1]], check=True))


@kind("rank without memory", 0, 3)
def _no_memory(case: Case) -> None:
    case.start(DEADLINE)
    process = case.rank()
    case.pause(MOMENT)
    _limit(case, process, psutil.RLIMIT_AS, lambda p: p.memory_info().vms + (1 << 20))


@kind("rank without descriptors", 0, 3)
def _no_descriptors(case: Case) -> None:
    case.start(DEADLINE)
    process = case.rank()
    case.pause(MOMENT)
    _limit(case, process, psutil.RLIMIT_NOFILE, lambda p: 8)


@kind("harness without descriptors", 0, 3)
def _harness_without_descriptors(case: Case) -> None:
    case.start(DEADLINE)
    process = _harness(case)
    _limit(case, process, psutil.RLIMIT_NOFILE, lambda p: 6)


def _limit(
    case: Case, process: psutil.Process | None, resource: int, most: Callable[[psutil.Process], int]
) -> None:
    try:
        if process is None:
            raise psutil.NoSuchProcess(0)
        process.rlimit(resource, (most(process), most(process)))
    except psutil.NoSuchProcess:
        case.late = True


# Nobody reads the output


@kind("stdout closed", 0)
def _stdout_closed(case: Case) -> None:
    _in_a_shell(case, ">&-")


@kind("stdout and stderr closed", 0)
def _both_closed(case: Case) -> None:
    _in_a_shell(case, ">&- 2>&-")


@kind("reader leaves", 0)
def _reader_leaves(case: Case) -> None:
    _in_a_shell(case, f"| head -{case.random.randint(1, 3)}")


def _in_a_shell(case: Case, redirection: str) -> None:
    python = shlex.quote(sys.executable)
    run = f"{python} -m harness run scenario={case.scenario} lane=cpu {DEADLINE}"
    case.begin(["bash", "-c", f"{run} {redirection}; exit ${{PIPESTATUS[0]}}"])


@kind("two at once", 0)
def _two_at_once(case: Case) -> None:
    case.start("launch.timeout=100")
    case.start("launch.timeout=100")


# The cache


@kind("overlay damaged", 3)
def _overlay_damaged(case: Case) -> None:
    key = case.random.choice(_own_cache(case))
    folder = case.sandbox.cache / "overlays" / key
    files = json.loads((folder / MANIFEST).read_text())["files"]
    code = sorted(file for file in files if files[file][0] and overlay.CODE.search(file))
    victim = folder / overlay.SITE / case.random.choice(code)
    text = victim.read_bytes()
    victim.unlink()  # a hard link: the file of the shared cache stays
    if case.random.random() < 0.5:
        victim.write_bytes(text[:-1])
    case.start(DEADLINE)


@kind("cache read-only", 0)
def _cache_read_only(case: Case) -> None:
    _own_cache(case)
    cache = str(case.sandbox.cache)
    _mount(case, "--bind", cache, cache)
    subprocess.run(["mount", "-o", "remount,ro,bind", cache], check=True)
    case.start(DEADLINE)


def _own_cache(case: Case) -> list[str]:
    """Give a case its own cache, with links to its scenario's overlays; returns their keys."""
    shared, case.sandbox.cache = case.sandbox.cache, case.log / "cache"
    with lent(case.scenario, "buggy", "fixed", cache=shared) as overlays:
        keys = {source.key: source for source in overlays.values()}
        for source in keys.values():
            copy(source, case.sandbox.cache)
    return list(keys)


def shared_cache() -> Path:
    return cache_folder()
