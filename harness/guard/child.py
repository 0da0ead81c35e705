"""Runs the guarded command: it gets every signal that this process gets, and ends it if asked.

Signals are not handled but waited for, with their sender: a terminal sends its own to the whole
group of processes, so passing those on would interrupt a launcher twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from harness.system.processes import members

OURS = ("KILL", "STOP", "TSTP", "TTIN", "TTOU", "CONT", "SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP")
"""What cannot be waited for, what stops a job in a shell, and faults of this process itself."""
NEVER = (signal.SIGCHLD, signal.SIGPIPE)
"""What is waited for, and means nothing to the command."""
OF_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
"""What a whole group gets: a shell that waits for its child ignores it otherwise."""
ENDING = (*OF_KEYBOARD, signal.SIGTERM, signal.SIGHUP)
LOOK = 0.2
"""How often it is asked whether to end the command, in seconds."""
GRACE = 30.0
"""Seconds that what is left has after the command has ended by a signal, as torchrun's ranks."""


@dataclass
class Ending:
    """How the command ended."""

    code: int = 0
    """Its exit code; 128 and the signal's number if a signal ended it, as in shells."""
    signal: int = 0
    """The signal that this process got, or sent, to end the command."""
    stopped: bool = False
    """Whether ``is_to_stop`` asked for it."""


@dataclass
class Child:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    mark: tuple[str, str]
    """A variable of its environment with its value, which all that it starts has, too."""

    def processes(self) -> list[psutil.Process]:
        """Every living process of the command."""
        variable, value = self.mark
        return [each for each in members(value, variable) if each.pid != os.getpid()]

    def send(self, number: int) -> None:
        """Send it a signal. A worker of a loader must not get a SIGTERM before its training."""
        if number not in OF_KEYBOARD:
            self.process.send_signal(number)
            return
        for process in self.processes():
            with suppress(OSError):
                if os.getpgid(process.pid) == os.getpgid(0):
                    os.kill(process.pid, number)


def run(
    words: Sequence[str], environment: Mapping[str, str], mark: str, is_to_stop: Callable[[], bool]
) -> Ending:
    """Run a command until it ends. ``mark`` is a variable of its environment that no other process
    has with this value: all that the command started ends, too, if a signal ended it."""
    ending = Ending()
    with _waited_for() as (signals, mask):
        process = subprocess.Popen(words, env=environment, preexec_fn=lambda: _set_mask(mask))
        child = Child(process, (mark, environment[mark]))
        while process.poll() is None:
            information = signal.sigtimedwait(signals, LOOK)
            if information is not None:
                _pass_on(information, child, ending)
            elif not ending.stopped and is_to_stop():
                ending.stopped, ending.signal = True, signal.SIGTERM
                child.send(signal.SIGTERM)
        code = process.returncode
        if ending.signal:
            _end(child, ending.signal, signals)
        elif code < 0:  # somebody killed the launcher, whose ranks would go on alone
            _end(child, signal.SIGTERM, signals)
    ending.code = code if code >= 0 else 128 - code
    return ending


@contextmanager
def _waited_for() -> Iterator[tuple[set[int], set[int]]]:
    """Block all signals that are passed on, for ``sigtimedwait``; yields them, and the mask that
    the command gets."""
    left_out = {getattr(signal, f"SIG{name}") for name in OURS}
    signals = {int(number) for number in signal.valid_signals()} - left_out
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, signals)}
    try:
        yield signals, mask
    finally:
        _set_mask(mask)


def _set_mask(mask: Iterable[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pass_on(information: signal.struct_siginfo, child: Child, ending: Ending) -> None:
    number = information.si_signo
    if number in NEVER:
        return
    if number in ENDING:
        ending.signal = number
    if information.si_code <= 0:  # a process sent it to us alone, and not a terminal to the group
        child.send(number)


def _end(child: Child, number: int, signals: set[int]) -> None:
    """End what is left of a command, such as children of a shell that has ended: by the same
    signal, and in the end by force. A second signal shortens the time for it."""
    told = set[int]()
    deadline = time.monotonic() + GRACE
    while left := child.processes():
        is_late = time.monotonic() > deadline
        for process in left:
            if is_late or process.pid not in told:
                told.add(process.pid)
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if is_late else number)
        information = signal.sigtimedwait(signals, LOOK)
        if information is not None and information.si_signo in ENDING:
            deadline = 0.0
