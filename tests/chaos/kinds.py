"""The kinds of faults, each with its documented exit codes.

Exit code 0 is right if a fault came too late or does no harm; ``case`` then checks the verdict.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.system.processes import handling
from tests.chaos.case import Case

DEADLINE = "launch.timeout=60"
"""For faults that a run either survives or that end it at once."""
WHILE = 6.0
"""About the seconds of a command: a fault comes at any time within them."""
MOMENT = 0.8
"""About the seconds that a rank lives once it has started; forked ranks do not import anything."""
KILLED = -signal.SIGKILL


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
    case.removed = True
    shutil.rmtree(folder, ignore_errors=True)
    return folder


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
