"""The processes of a trial: found by a mark in their environment, and ended.

torchrun gives each rank a session of its own, so that ending its process group alone leaves them;
the mark finds them whoever their parent is.
"""

from __future__ import annotations

import ctypes
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

TOKEN = "HARNESS_TRIAL"
"""The environment variable with a trial's mark."""


def new_token() -> str:
    """A mark that no other trial has."""
    return uuid.uuid4().hex


NOBODYS = "0" * len(new_token())
"""The mark of a process that belongs to no trial yet: one as long is put in its place."""


def bear(token: str) -> None:
    """Put a trial's mark on this process, which was started with NOBODYS, and on its children.

    What others see of a process's environment (``/proc/PID/environ``) is the memory that it was
    started with, and no variable that was set later: so the mark is written there, over the other.
    """
    if os.environ.get(TOKEN) != NOBODYS:
        raise ValueError(f"{TOKEN} was set already")
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(TOKEN.encode()), token.encode(), len(NOBODYS))
    os.environ[TOKEN] = token


def members(token: str) -> list[psutil.Process]:
    """Every living process of a trial."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(TOKEN) == token
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or somebody else's
    return found


def hearing(token: str, number: int) -> Iterator[psutil.Process]:
    """The processes of a trial that have a handler for a signal; Linux only."""
    for process in members(token):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue  # gone meanwhile
        caught = next((w for w in status.splitlines() if w.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            yield process


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
