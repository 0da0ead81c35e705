"""Processes that end with their parent, even if the parent is killed.

Linux can signal a process when its parent dies (``PR_SET_PDEATHSIG``). Each process of a launch
requests that signal, so none outlives the harness: harness -> keeper -> torchrun -> ranks. The
processes that a rank starts do not request it. The keeper ends them: a process below the keeper
that loses its parent becomes the keeper's child (``PR_SET_CHILD_SUBREAPER``).

Not covered: if the keeper is killed or stopped together with the harness, processes that ranks
started (a compiler, a data loader's workers) run until they are done or notice that their rank is
gone. On other systems than Linux nothing here has an effect: ranks end themselves some time after
their deadline. Standard library only: ranks call this before they import anything else.
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
"""The environment variable with the process id of the parent that a process must end with."""

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
POLL_SECONDS = 0.01


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Request a signal for this process when the thread that started it ends.

    The kernel watches the thread, not its process: a thread that launches must live until its
    launch has ended. The harness's threads do, as they wait for their trials.
    """
    parent = os.environ.get(PARENT)
    if not LINUX or parent is None:
        return
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != int(parent):  # it ended before the request, so no signal comes
        os.kill(os.getpid(), signal.SIGKILL)


def fork() -> int:
    """Fork a child that ends when this process ends; returns its process id, and 0 in the child."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        os.environ[PARENT] = str(parent)
        end_with_parent()
    return child


def set_name(name: str) -> None:
    """Set the name of this process in ``ps``, at most 15 letters: all forked processes have one
    command line."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def keep() -> None:
    """Fork, and return in the child. This process stays as the keeper: once the child has ended, or
    the harness is gone, of which SIGTERM tells it, it kills everything below and exits as the child
    did."""
    if not LINUX:
        return
    signal.signal(signal.SIGTERM, _raise_gone)
    end_with_parent(signal.SIGTERM)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    set_name("keeper")
    child = fork()  # no thread has been started yet
    if child:
        _exit_as(_wait_and_clean_up(child))
    set_name("torchrun")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ[PARENT] = str(os.getpid())  # for what the child starts


class _HarnessGone(BaseException):
    """The harness has ended, or wants this launch to end."""


def _raise_gone(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not stop the clean-up
    raise _HarnessGone


def _wait_and_clean_up(child: int) -> int:
    """Wait for the child, then kill all its descendants; returns the child's wait status."""
    ended = status = 0
    try:
        while ended != child:
            ended, status = os.wait()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _HarnessGone:
        status = int(signal.SIGTERM)
    _end_children()
    return status


def _end_children() -> None:
    """Kill children until none is left: the children of a killed process become ours."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)  # only we reap them, so the id is still theirs
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(POLL_SECONDS)


def _children() -> list[int]:
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has ended
        if int(parent) == os.getpid():
            pids.append(int(stat.parent.name))
    return pids


def _exit_as(status: int) -> NoReturn:
    """End this process with the signal or exit code in a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _prctl(option: int, value: int) -> None:
    # If a sandbox refuses it, ranks end as on other systems than Linux.
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
