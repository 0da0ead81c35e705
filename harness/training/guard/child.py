"""Runs the guarded command: it gets every signal that this process gets, and ends it if asked.

Signals are not handled but waited for, with their sender. What a terminal, a scheduler or a
service manager sends to the whole group of processes is not passed on: torchrun gives its ranks no
time to write a checkpoint if it gets a second SIGTERM.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.system.errors import UserError
from harness.system.processes import members
from harness.system.text import one_line

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
GRACE_AFTER_ALARM = 90.0
"""Seconds that the command itself has if an alarm stops it: torchrun gives its ranks 30 of them."""
AT_ONCE = 0.2
"""Seconds in which a signal reaches all processes to which somebody sends it."""


@dataclass
class Ending:
    """How the command ended."""

    code: int = 0
    """Its exit code; 128 and the signal's number if a signal ended it, as in shells."""
    signal: int = 0
    """The signal that this process got, or sent, to end the command."""
    stopped: bool = False
    """Whether ``is_to_stop`` asked for it."""
    by_group: bool = False
    """Whether the whole group of processes got that signal."""


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

    def kill(self) -> None:
        """End it by force, with all that it has started."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    def send(self, number: int) -> None:
        """Send it a signal. A worker of a loader must not get a SIGTERM before its training."""
        if number not in OF_KEYBOARD:
            self.process.send_signal(number)
            return
        for process in self.beside():
            with suppress(psutil.Error):
                process.send_signal(number)

    def beside(self) -> list[psutil.Process]:
        """Its processes in the group of this one."""
        return [process for process in self.processes() if _group(process.pid) == os.getpgid(0)]


def _group(process: int) -> int:
    """The group of a process; 0 if it has ended."""
    try:
        return os.getpgid(process)
    except OSError:
        return 0


class Witness:
    """A process that does nothing, in the group of the command, and with its words. All signals
    wait there: one that does was sent to the command, too, and is not passed on."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = ("/bin/sh", "-c", "read line", *words)
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        with suppress(OSError):
            self._process = subprocess.Popen(  # it ends with this process, which has its input
                self._words,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """End this process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def has_got(self, number: int) -> bool:
        """Whether a signal that this process has just got was sent to all."""
        end = time.monotonic() + AT_ONCE
        while not (has_got := self._waits(number)) and time.monotonic() < end:
            time.sleep(0.01)
        if has_got:
            time.sleep(0.05)
            signal.sigtimedwait({number}, 0)  # timeout(1) sends it once more
            self.end()
            self._start()
        return has_got

    def _waits(self, number: int) -> bool:
        if self._process is None:
            return False
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return False  # another system, or somebody has killed it
        masks = [int(line.split()[1], 16) for line in lines if line[:7] in ("SigPnd:", "ShdPnd:")]
        return any(mask >> (number - 1) & 1 for mask in masks)


def run(
    words: Sequence[str], environment: Mapping[str, str], mark: str, is_to_stop: Callable[[], bool]
) -> Ending:
    """Run a command until it ends. ``mark`` is a variable of its environment that no other process
    has with this value: all that the command started ends, too, if a signal ended it. Raises
    UserError for what the kernel does not start, such as a script without an interpreter."""
    ending = Ending()
    with _waited_for() as (signals, mask):
        try:
            process = subprocess.Popen(words, env=environment, preexec_fn=lambda: _set_mask(mask))
        except OSError as error:
            reason = f"cannot start '{one_line(words[0])}': {error.strerror}"
            raise UserError(f"{reason}; name its interpreter, as in python train.py") from None
        child, witness = Child(process, (mark, environment[mark])), Witness(words)
        deadline = math.inf
        while process.poll() is None:
            information = signal.sigtimedwait(signals, LOOK)
            if information is not None:
                _pass_on(information, child, witness, ending)
            elif not ending.stopped and is_to_stop():
                ending.stopped, ending.signal = True, signal.SIGTERM
                child.send(signal.SIGTERM)
                deadline = time.monotonic() + GRACE_AFTER_ALARM
            elif time.monotonic() > deadline:
                child.kill()
        witness.end()
        code = process.returncode
        if ending.signal:
            _end(child, ending.signal, signals, ending.by_group)
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


def _pass_on(
    information: signal.struct_siginfo, child: Child, witness: Witness, ending: Ending
) -> None:
    number = information.si_signo
    if number in NEVER:
        return
    is_of_group = witness.has_got(number) or information.si_code > 0  # a terminal has sent it
    if number in ENDING:
        ending.signal, ending.by_group = number, is_of_group
    if not is_of_group:
        child.send(number)


def _end(child: Child, number: int, signals: set[int], has_group: bool = False) -> None:
    """End what is left of a command, such as children of a shell that has ended: by the same
    signal, unless the whole group has got it, and in the end by force. A second signal shortens the
    time for it."""
    notified = set[int]()
    if has_group:
        notified = {process.pid for process in child.beside()}
    deadline = time.monotonic() + GRACE
    while survivors := child.processes():
        is_late = time.monotonic() > deadline
        for process in survivors:
            if is_late or process.pid not in notified:
                notified.add(process.pid)
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL if is_late else number)
        information = signal.sigtimedwait(signals, LOOK)
        if information is not None and information.si_signo in ENDING:
            deadline = 0.0
