"""What may happen to a rank that guard watches. Each function is called in a rank before it
trains, and returns what is to be done before each step."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
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


def _nothing(step: int) -> None:
    return None


def handler_fails() -> BeforeStep:
    training.Training.before_step = _fail  # type: ignore[method-assign]
    return _nothing


def handler_fails_on_rank_1() -> BeforeStep:
    return handler_fails() if dist.get_rank() == 1 else _nothing


def hook_fails() -> BeforeStep:
    gradient_samples.GradientSamples.add_computed = _fail  # type: ignore[method-assign]
    return _nothing


def arming_fails() -> BeforeStep:
    vars(trained_model)["watched"] = _fail
    return _nothing


def first_handler_fails() -> BeforeStep:
    """The fault comes before guard knows a training."""
    vars(trainings)["Training"] = _fail
    return _nothing


def captures_graph() -> BeforeStep:
    """A CUDA graph is captured in the first steps, as torch would say on a GPU."""
    captured = [True]
    vars(backward_events)["captures"] = lambda: captured[0]

    def before(step: int) -> None:
        captured[0] = step < STEP

    return before


def judge_fails() -> BeforeStep:
    vars(account)["judge"] = _fail
    return _nothing


def report_fails() -> BeforeStep:
    account.Account._finish = _fail  # type: ignore[method-assign]
    return _nothing


def posts_are_garbage() -> BeforeStep:
    if dist.get_rank() == 1:
        vars(mailbox)["packed"] = lambda post: b"\0\0\0\0\0\0\0\5 made"
    return _nothing


def rank_0_dies() -> BeforeStep:
    def before(step: int) -> None:
        if step == STEP and dist.get_rank() == 0:
            os._exit(3)

    return before


def rank_0_is_killed() -> BeforeStep:
    def before(step: int) -> None:
        if step == STEP and dist.get_rank() == 0:
            time.sleep(1)  # the first checks are judged
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def all_ranks_are_killed() -> BeforeStep:
    """A node is lost, after its last check of the first ones was judged."""

    def before(step: int) -> None:
        if step == STEP:
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def store_dies() -> BeforeStep:
    def before(step: int) -> None:
        if step == STEP and dist.get_rank() == 0:
            os.kill(int(os.environ["STORE_PID"]), signal.SIGKILL)

    return before


def store_hangs() -> BeforeStep:
    """The host of the store answers no more, and closes no connection."""

    def before(step: int) -> None:
        if step == STEP and dist.get_rank() == 0:
            os.kill(int(os.environ["STORE_PID"]), signal.SIGSTOP)

    return before


def thread_dies_on_rank_1() -> BeforeStep:
    """The thread that posts ends by what is no Exception."""

    def end(*_: Any) -> NoReturn:
        raise SystemExit(9)

    if dist.get_rank() == 1:
        mailbox.Mailbox._post = end  # type: ignore[method-assign, assignment]
    return _nothing


def thread_cannot_start() -> BeforeStep:
    """The limit of processes is reached."""
    threading.Thread.start = _fail  # type: ignore[method-assign]
    return _nothing


def rank_never_posts() -> BeforeStep:
    mailbox.LATEST = 0.3
    if dist.get_rank() == 1:
        mailbox.Mailbox.send = lambda *_: None  # type: ignore[method-assign]
    return _nothing


def terminated_in_check() -> BeforeStep:
    """A scheduler ends the ranks, in a check."""
    post = training.Training.post

    def post_and_end(self: training.Training, rank: int) -> Any:
        if self.turn.check == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return post(self, rank)

    training.Training.post = post_and_end  # type: ignore[method-assign]
    return _nothing


def terminated_with_handler() -> BeforeStep:
    """A scheduler ends the ranks, whose script writes a checkpoint then."""

    def end(*_: object) -> NoReturn:
        sys.stderr.write("the script's handler ran\n")
        sys.exit(7)

    signal.signal(signal.SIGTERM, end)
    return terminated_in_check()


def forks_worker() -> BeforeStep:
    """A rank that has trained forks a process that steps an optimizer, and calls exit functions."""

    def before(step: int) -> None:
        if step != STEP:
            return
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        weight = torch.nn.Parameter(torch.ones(3))
        weight.grad = torch.ones(3)  # autograd refuses to run in a process that was forked so
        torch.optim.SGD([weight], 0.1).step()
        atexit._run_exitfuncs()
        os._exit(0)  # otherwise gloo waits for its threads, which were not forked

    return before
