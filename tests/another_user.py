"""What another user may do: run as nobody, in a process forked from this one, which root may."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


@contextmanager
def as_nobody(job: Callable[..., Iterator[Any]], *arguments: object) -> Iterator[Any]:
    """What a generator yields first, run as nobody; it goes on, to its end, on leaving.

    All that it imports must be imported already: root's Python may lie where nobody cannot read.
    """
    context = multiprocessing.get_context("fork")
    answers, leave = context.Queue(), context.Event()
    process = context.Process(target=_run, args=(job, arguments, answers, leave))
    process.start()
    try:
        answer, failure = answers.get(timeout=30)
        assert not failure, failure
        yield answer
    finally:
        leave.set()
        process.join(30)
    assert process.exitcode == 0


def _run(job: Callable[..., Iterator[Any]], arguments: Any, answers: Any, leave: Any) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    try:
        for answer in job(*arguments):
            answers.put((answer, None))
            leave.wait(30)
    except BaseException:
        answers.put((None, traceback.format_exc()))
