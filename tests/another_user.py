"""Runs code as another user: as nobody, in a process forked from this one, which needs root."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@contextmanager
def as_nobody(job: Callable[..., Iterator[Any]], *arguments: object) -> Iterator[Any]:
    """Run a generator as nobody and yield its first value; it continues when the context is left.

    Import what it needs before: the user nobody may be unable to read root's Python.
    """
    context = multiprocessing.get_context("fork")
    values, leave = context.Queue(), context.Event()
    process = context.Process(target=_run, args=(job, arguments, values, leave))
    process.start()
    try:
        value, failure = values.get(timeout=30)
        assert not failure, failure
        yield value
    finally:
        leave.set()
        process.join(30)
    assert process.exitcode == 0


def _run(job: Callable[..., Iterator[Any]], arguments: Any, values: Any, leave: Any) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        for value in job(*arguments):
            values.put((value, None))
            leave.wait(30)
    except BaseException:
        values.put((None, traceback.format_exc()))
