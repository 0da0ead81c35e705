"""Finds and kills the processes with a token in their environment, such as a launch has.

Two mechanisms end processes, because each covers a case that the other does not:

- ``end_all`` here, while the harness lives. It finds every process with the token, whatever its
  parent, session or process group is: ranks whose torchrun was killed or stopped, and what ranks
  started themselves.
- ``supervisor``, when the harness is killed and can no longer search. The kernel signals each child
  of a process that dies, down to the ranks; above torchrun, a keeper also ends what ranks started.

Servers have no token, as they outlive a launch; the kernel ends them with their parents.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from harness.system.launch_token import TOKEN

SECOND_LOOK = 0.02
"""Seconds until processes are looked for again if there were none."""


def members(token: str, variable: str = TOKEN) -> list[psutil.Process]:
    """Every living process with this token in a variable of its environment.

    None is an answer only if a second look finds none, too: while a process executes another
    program it has no environment, and one that has just been forked is in no list yet.
    """
    if processes := _look(token, variable):
        return processes
    time.sleep(SECOND_LOOK)
    return _look(token, variable)


def _look(token: str, variable: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(variable) == token
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue  # it has ended, or belongs to another user
    return processes


def ask_for_stacks(processes: Iterable[psutil.Process]) -> None:
    """Let every process that has a handler for SIGUSR1, as a rank has, write its stack."""
    for process in handling(processes, signal.SIGUSR1):
        with suppress(psutil.Error):  # it has ended
            process.send_signal(signal.SIGUSR1)


def handling(processes: Iterable[psutil.Process], number: int) -> Iterator[psutil.Process]:
    """The processes that have a handler for a signal; Linux only."""
    for process in processes:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue  # it has ended
        caught = next((w for w in status.splitlines() if w.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            yield process


def end_all(token: str) -> tuple[int, ...]:
    """Kill every process with this token; returns the ids of the processes that live 5 seconds
    later."""
    deadline = time.monotonic() + 5
    while living := members(token):
        for process in living:
            try:
                process.kill()
            except psutil.Error:
                continue  # it has ended
        psutil.wait_procs(living, timeout=1)
        if time.monotonic() > deadline:
            break
    return tuple(process.pid for process in living)
