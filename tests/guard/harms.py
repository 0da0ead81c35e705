"""What may happen to a rank that guard watches. Each of ``HARMS`` is called in a rank before it
trains, and returns what is to be done before each step."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from harness.rank.guard.reporting import account, mailbox
from harness.rank.guard.sampling import gradient_samples
from harness.rank.guard.subscribers import backward_events
from harness.rank.guard.trainings import trained_model, training, trainings

STEP = 7
"""The step before which something happens that happens once."""

BeforeStep = Callable[[int], None]


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a made-up fault of guard")


def _end_thread(*_: Any) -> NoReturn:
    raise SystemExit(9)  # which is no Exception


def _nothing(step: int) -> None:
    return None


def _replaces(owner: Any, name: str, value: Any = _fail, rank: int | None = None) -> BeforeStep:
    """A part of guard is another one, on all ranks or on one."""
    if rank in (None, dist.get_rank()):
        setattr(owner, name, value)
    return _nothing


def _happens(act: Callable[[], object], rank: int | None = None, after: float = 0) -> BeforeStep:
    """Something happens once, on all ranks or on one; guard judges its checks before."""

    def before(step: int) -> None:
        if step == STEP and rank in (None, dist.get_rank()):
            time.sleep(after)
            act()

    return before


def _signal_to_store(number: signal.Signals) -> None:
    os.kill(int(os.environ["STORE_PID"]), number)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def captures_graph() -> BeforeStep:
    """A CUDA graph is captured in the first steps, as torch would say on a GPU."""
    captured = [True]
    vars(backward_events)["captures"] = lambda: captured[0]
    return lambda step: captured.__setitem__(0, step < STEP)


def rank_never_posts() -> BeforeStep:
    mailbox.LATEST = 0.3
    return _replaces(mailbox.Mailbox, "send", lambda *_: None, rank=1)


def terminated_in_check() -> BeforeStep:
    """A scheduler ends the ranks, in a check."""
    post = training.Training.post

    def post_and_end(self: training.Training, rank: int) -> Any:
        if self.turn.check == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return post(self, rank)

    return _replaces(training.Training, "post", post_and_end)


def terminated_with_handler() -> BeforeStep:
    """A scheduler ends the ranks, whose script writes a checkpoint then."""

    def end(*_: object) -> NoReturn:
        sys.stderr.write("the script's handler ran\n")
        sys.exit(7)

    signal.signal(signal.SIGTERM, end)
    return terminated_in_check()


def _fork_worker() -> None:
    """Fork a process that steps an optimizer, and calls exit functions."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)  # autograd refuses to run in a process that was forked so
    torch.optim.SGD([weight], 0.1).step()
    atexit._run_exitfuncs()
    os._exit(0)  # otherwise gloo waits for its threads, which were not forked


HARMS: dict[str, Callable[[], BeforeStep]] = {
    "handler_fails": partial(_replaces, training.Training, "before_step"),
    "handler_fails_on_rank_1": partial(_replaces, training.Training, "before_step", rank=1),
    "hook_fails": partial(_replaces, gradient_samples.GradientSamples, "add_computed"),
    "arming_fails": partial(_replaces, trained_model, "watched"),
    "first_handler_fails": partial(_replaces, trainings, "Training"),  # no training is known yet
    "judge_fails": partial(_replaces, account, "judge"),
    "report_fails": partial(_replaces, account.Account, "_finish"),
    "posts_are_garbage": partial(
        _replaces, mailbox, "packed", lambda post: b"\0\0\0\0\0\0\0\5 made", rank=1
    ),
    "thread_dies_on_rank_1": partial(_replaces, mailbox.Mailbox, "_post", _end_thread, rank=1),
    "thread_cannot_start": partial(_replaces, threading.Thread, "start"),
    "rank_never_posts": rank_never_posts,
    "captures_graph": captures_graph,
    "rank_0_dies": partial(_happens, partial(os._exit, 3), rank=0),
    "rank_0_is_killed": partial(_happens, _kill, rank=0, after=1),
    "all_ranks_are_killed": partial(_happens, _kill, after=1),  # a node is lost
    "store_dies": partial(_happens, partial(_signal_to_store, signal.SIGKILL), rank=0),
    # Its host answers no more, and closes no connection.
    "store_hangs": partial(_happens, partial(_signal_to_store, signal.SIGSTOP), rank=0),
    "terminated_in_check": terminated_in_check,
    "terminated_with_handler": terminated_with_handler,
    "forks_worker": partial(_happens, _fork_worker),
}
