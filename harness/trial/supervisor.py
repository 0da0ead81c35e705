"""Processes that end with the one that started them, also where that one was killed.

Linux sends a process a signal when its parent dies (``PR_SET_PDEATHSIG``), so that nothing of a
trial outlives the harness: harness -> keeper -> torchrun -> ranks. What a rank itself starts asks
for no signal, so a keeper stands above torchrun: whatever down there loses its parent becomes the
keeper's own child (``PR_SET_CHILD_SUBREAPER``), and the keeper ends it.

Not covered: where the keeper itself is killed, or stopped, together with the harness, what ranks
started (a compiler, a data loader's workers) goes on until it is done or misses its rank; and
elsewhere than on Linux nothing here has an effect: ranks end by themselves some time after their
deadline. Standard library only: ranks call this before they import anything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

PARENT = "HARNESS_PARENT"
"""The environment variable with the process id of the one that starts a process of ours."""

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
POLL_SECONDS = 0.01


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have this process sent a signal when the thread that started it ends.

    It is the thread that counts, not its process: one that launches must live until what it
    launched has ended. The harness's threads do, for they wait for their trials.
    """
    parent = os.environ.get(PARENT)
    if not LINUX or parent is None:
        return
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != int(parent):  # it ended before the kernel was told, and no signal comes
        os.kill(os.getpid(), signal.SIGKILL)


def go_by(name: str) -> None:
    """Have ``ps`` and the like call this process so, in at most 15 letters: what was forked has one
    command line."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def keep() -> None:
    """Return in a child of this process, while this process keeps it: ends what it leaves behind,
    or all of it when the harness is gone, and then leaves as the child did."""
    if not LINUX:
        return
    signal.signal(signal.SIGTERM, _alone)
    end_with_parent(signal.SIGTERM)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    go_by("keeper")
    child = os.fork()  # no thread has been started yet
    if child:
        _leave_as(_kept(child))
    go_by("torchrun")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ[PARENT] = str(keeper)
    end_with_parent()
    os.environ[PARENT] = str(os.getpid())  # for what the child starts


class _Alone(BaseException):
    """The harness is gone, or wants this trial to end."""


def _alone(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what it asked for is not to be disturbed
    raise _Alone


def _kept(child: int) -> int:
    """Wait for a child; its wait status, once every process that came of it has ended."""
    ended = status = 0
    try:
        while ended != child:
            ended, status = os.wait()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Alone:
        status = int(signal.SIGTERM)
    _end_children()
    return status


def _end_children() -> None:
    """Kill every child of this process; a child's own children become ours, and are next."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)  # nobody else reaps them, so the number is still theirs
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(POLL_SECONDS)


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue  # gone meanwhile
        if int(parent) == os.getpid():
            found.append(int(stat.parent.name))
    return found


def _leave_as(status: int) -> NoReturn:
    """End this process as another ended: by the same signal, or with the same exit code."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _prctl(option: int, value: int) -> None:
    # Where a sandbox refuses it, ranks end as they do elsewhere than on Linux.
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
