"""Runs the guarded command: it gets every signal that this process gets, and ends it if asked.

Signals are not handled but waited for, with their sender: a terminal sends its own to the whole
group of processes, so passing those on would interrupt a launcher twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from harness.system.processes import members

OURS = {"KILL", "STOP", "TSTP", "TTIN", "TTOU", "CONT", "SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP"}
"""What cannot be waited for, what stops a job in a shell, and faults of this process itself."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK = 0.2
"""How often it is asked whether to end the command, in seconds."""
GRACE = 30.0
"""Seconds that what is left has after the command has ended by a signal, as torchrun's ranks."""


@dataclass
class Ending:
    """How the command ended."""

    code: int
    """Its exit code; 128 and the signal's number if a signal ended it, as in shells."""
    signal: int = 0
    """The signal that this process got, or sent, to end the command."""
    stopped: bool = False
    """Whether ``is_to_stop`` asked for it."""


def run(
    words: Sequence[str], environment: Mapping[str, str], mark: str, is_to_stop: Callable[[], bool]
) -> Ending:
    """Run a command until it ends. ``mark`` is a variable of its environment, by which its
    processes are found: all that it started end, too, if a signal ended it."""
    ending = Ending(0)
    with _waited_for() as (signals, mask):
        process = subprocess.Popen(words, env=environment, preexec_fn=lambda: _mask(mask))
        while process.poll() is None:
            information = signal.sigtimedwait(signals, LOOK)
            if information is not None:
                _pass_on(information, process, ending)
            elif not ending.stopped and is_to_stop():
                ending.stopped, ending.signal = True, signal.SIGTERM
                process.send_signal(signal.SIGTERM)
        if ending.signal:
            _end(environment[mark], mark, ending.signal, signals)
    code = process.returncode
    ending.code = code if code >= 0 else 128 - code
    return ending


@contextmanager
def _waited_for() -> Iterator[tuple[set[int], set[signal.Signals]]]:
    """Block all signals that are passed on, for ``sigtimedwait``; yields them, and the mask that
    the command gets."""
    left_out = {getattr(signal, f"SIG{name}") for name in OURS}
    signals = {int(number) for number in signal.valid_signals()} - left_out
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield signals, {one for one in mask if isinstance(one, signal.Signals)}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _mask(mask: set[signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pass_on(
    information: signal.struct_siginfo, process: subprocess.Popen[bytes], ending: Ending
) -> None:
    number = information.si_signo
    if number in (signal.SIGCHLD, signal.SIGPIPE):
        return
    if number in ENDING:
        ending.signal = number
    if information.si_code <= 0:  # a process sent it to us alone, and not a terminal to the group
        process.send_signal(number)


def _end(token: str, mark: str, number: int, signals: set[int]) -> None:
    """End what is left of a command, such as children of a shell that has ended: by the same
    signal, and in the end by force. A second signal shortens the time for it."""
    told: set[int] = set()
    deadline = time.monotonic() + GRACE
    while left := [process for process in members(token, mark) if process.pid != os.getpid()]:
        for process in left:
            is_late = time.monotonic() > deadline
            if is_late or process.pid not in told:
                told.add(process.pid)
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if is_late else number)
        information = signal.sigtimedwait(signals, LOOK)
        if information is not None and information.si_signo in ENDING:
            deadline = 0.0
