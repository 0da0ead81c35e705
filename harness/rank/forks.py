"""Forked children. A process imports once; each of its children then runs a function, and tells it
the results.

A child ends with its parent, even if the parent is killed (see ``supervisor``). It exits with the
code that an interpreter would have, but without a teardown: torch's is slow, and can wait for other
ranks for ever.

A child of ``Children`` also has a pipe for messages. No other process has its writing end, so the
pipe ends when the child has ended, in whatever way. Standard library only.
"""

from __future__ import annotations

import gc
import json
import math
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from harness.rank import supervisor

Output = Sequence[int | Path]
"""The standard output and the standard error of a child: descriptors, or files to append to. Empty:
those of its parent."""

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a child at once, whatever its parent does with them."""

READ_BYTES = 1 << 16
AN_HOUR = 3600.0


@contextmanager
def importing() -> Iterator[None]:
    """Switch off the garbage collector during imports, which saves a quarter of their time.

    Later collections ignore what was imported: it is never freed, and a child would have to copy
    the memory that a collection visits.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def fork(run: Callable[[], object], output: Output = (), *, session: bool = False) -> int:
    """Fork a child that calls ``run`` and exits; returns its process id.

    With ``session`` the child has a session of its own, and so a process group.
    """
    sys.stdout.flush()  # the child must not print it again
    sys.stderr.flush()
    return supervisor.fork() or _run_and_exit(run, output, session)


def _run_and_exit(run: Callable[[], object], output: Output, session: bool) -> NoReturn:
    code = 1
    try:
        if session:
            os.setsid()
        for number in HANDLED:
            if callable(signal.getsignal(number)):  # what was ignored stays ignored
                signal.signal(number, signal.SIG_DFL)
        for descriptor, file in enumerate(output, start=1):
            if isinstance(file, Path):
                file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
            os.dup2(file, descriptor)
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


_pipe: int | None = None
"""The writing end of the pipe to the parent, if this process is a child of ``Children``."""


def report(message: Any) -> None:
    """Send a message, which JSON can express, to the parent of this child."""
    if _pipe is None:
        raise RuntimeError("this process is no child that can report")
    send(_pipe, message)


def send(pipe: int, message: Any) -> None:
    """Write a message into a pipe that somebody reads with ``Messages``."""
    os.write(pipe, json.dumps(message).encode() + b"\n")


def _close_inherited_pipe() -> None:
    """Close the pipe of the process from which this one was forked."""
    global _pipe
    if _pipe is not None:
        os.close(_pipe)
    _pipe = None


os.register_at_fork(after_in_child=_close_inherited_pipe)  # also what torch and a loader fork


def _run_with_pipe(run: Callable[[], object], reads: int, writes: int) -> None:
    global _pipe
    os.close(reads)
    _pipe = writes
    run()


class Messages:
    """What arrives at the reading end of a pipe: JSON, a message in each line."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._rest = b""
        os.set_blocking(pipe, False)

    def read(self) -> list[Any] | None:
        """The messages that have arrived since the last call; None if the pipe has ended."""
        try:
            received = os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return []
        if not received:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [json.loads(line) for line in lines]


class Child:
    """A child that has not been waited for, or how it ended."""

    def __init__(self, pid: int, messages: Messages) -> None:
        self.pid = pid
        self.messages = messages
        self.code: int | None = None
        """Its exit code, negative for a signal; None until it has ended."""
        self.deadline = math.inf
        """The moment at which it is killed, in monotonic seconds."""
        self.late = False
        """Whether it was killed at its deadline."""

    def allow(self, seconds: float) -> None:
        """Kill the child when these seconds have passed, unless it has ended or is allowed more."""
        self.deadline = time.monotonic() + seconds

    def kill(self) -> None:
        """Kill the child and its process group. Only its parent waits for it, so the id is its."""
        os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it has no group of its own
            os.killpg(self.pid, signal.SIGKILL)


class Children:
    """The living children that a process has started here, and what they report. Leaving the
    context kills them."""

    def __init__(self, requests: socket.socket | None = None) -> None:
        self.living: list[Child] = []
        self._requests = requests
        self._ready = selectors.DefaultSelector()
        if requests:
            self._ready.register(requests, selectors.EVENT_READ)

    def start(
        self, run: Callable[[], object], output: Output = (), *, session: bool = False
    ) -> Child:
        """Fork a child that calls ``run``, which may ``report``; see ``fork``."""
        reads, writes = os.pipe()
        pid = fork(partial(_run_with_pipe, run, reads, writes), output, session=session)
        os.close(writes)
        child = Child(pid, Messages(reads))
        self._ready.register(reads, selectors.EVENT_READ, child)
        self.living.append(child)
        return child

    def hear(self) -> Iterator[tuple[Child, Any]]:
        """Yield each child with each of its messages, and with None when it has ended.

        Children may be started meanwhile. Stops when no child is left, or, if there is a socket for
        requests, when that has one.
        """
        requested = False
        while not requested and (self._requests or self.living):
            seconds = [child.deadline - time.monotonic() for child in self.living]
            readable = [key.data for key, _ in self._ready.select(min([AN_HOUR, *seconds]))]
            for child in self.living:
                if child.deadline <= time.monotonic() and child not in readable:
                    child.late, child.deadline = True, math.inf
                    child.kill()
            requested = None in readable
            for child in filter(None, readable):
                messages = child.messages.read()
                if messages is None:
                    self._wait_for(child)
                for message in [None] if messages is None else messages:
                    yield child, message

    def _wait_for(self, child: Child) -> None:
        """Wait for a child that has ended, and kill what it has left in its process group."""
        child.kill()
        child.code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self.living.remove(child)
        self._ready.unregister(child.messages.pipe)
        os.close(child.messages.pipe)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in list(self.living):
            self._wait_for(child)
        self._ready.close()


def exit_code(run: Callable[[], object]) -> int:
    """Call a function in a child; returns the child's exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(run), 0)[1])
