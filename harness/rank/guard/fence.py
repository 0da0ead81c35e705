"""Keeps guard out of the training's way: its faults, its time, and a second thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.utils.hooks import unserializable_hook

from .sentences import say, short
from .settings import report_in

FIRST_STEPS = 10
"""Steps in which the order of a loop's calls is looked at: more than the ``LATE`` clippings that
are told."""


class Fence:
    """Calls guard's handlers, until one of them fails."""

    def __init__(self, trainings: Sequence[Any], at_stop: Callable[[str], None]) -> None:
        self.trainings, self._at_stop = trainings, at_stop
        self.error = ""
        """Why this process is watched no more."""
        self.is_dead = False
        """Whether this process is a worker that a training process forked."""
        self.thread: Any = None
        """The thread that trains."""

    def is_alive(self) -> bool:
        """Whether this process is watched."""
        return not self.is_dead and not self.error

    def is_due(self) -> bool:
        """Whether a training is to be checked at its next step."""
        return self.is_alive() and any(training.due for training in self.trainings)

    def is_new(self) -> bool:
        """Whether a training has just begun: it takes its first steps."""
        return self.is_alive() and any(0 < one.steps <= FIRST_STEPS for one in self.trainings)

    def looks_at_step(self) -> bool:
        """Whether something is to be read before a step."""
        return self.is_alive() and any(
            one.armed or one.states.next_resume for one in self.trainings
        )

    def is_armed(self) -> bool:
        """Whether a training is in a checked step."""
        return self.is_alive() and any(training.armed for training in self.trainings)

    def note_fork(self) -> None:
        """Watch no more in a worker that a training process forked."""
        # A worker is forked by a process that has trained, a rank by one that has not.
        self.is_dead = bool(self.error) or any(training.steps for training in self.trainings)

    def is_alone(self) -> bool:
        """Whether one thread trains: gradients and losses of two could not be told apart."""
        thread = threading.current_thread()
        if self.thread is None or not self.thread.is_alive():
            self.thread = thread
        if thread is not self.thread:
            self.stop("two threads of this process train")
        return thread is self.thread

    def call(self, handler: Callable[..., None], *arguments: Any) -> None:
        """Call a handler, time it, and keep its faults from the training."""
        started, training = time.perf_counter(), self._spender()
        try:
            handler(*arguments)
        except Exception as error:
            self.stop(short(error))
        training = training or self._spender()
        if training is not None:
            training.costs.spend(time.perf_counter() - started)

    def _spender(self) -> Any:
        """The training for which a handler works now."""
        if len(self.trainings) == 1:
            return self.trainings[0]
        return next((training for training in self.trainings if training.armed), None)

    def stop(self, error: str) -> None:
        """Watch no more, after a fault of guard itself."""
        if self.error:
            return
        self.error = error
        report_in("training")
        for training in self.trainings:
            training.disarm()
        say(f"stopped on rank {os.environ.get('RANK', 0)}, the training goes on: {error}")
        self._at_stop(error)

    def guarded(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """A handler of an event that this fence calls."""
        # Torch would warn of other hooks when a user saves a tensor that has them.
        return unserializable_hook(partial(self.call, handler))
