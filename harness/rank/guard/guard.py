"""Watches the trainings of this process: its parts subscribe to the events of torch, and post."""

from __future__ import annotations

import atexit
import os
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize, register_after_fork

from .data.rows import Rows
from .fence import Fence
from .reporting.account import Account
from .sampling.collectives import Collectives
from .sampling.losses import Losses
from .sampling.optimizers import has_constructed_any
from .settings import Settings
from .states.schedules import Schedules
from .subscribers.backward_events import BackwardEvents, GradientEvents
from .subscribers.merges import Merges
from .subscribers.saves import Checkpoints
from .subscribers.step_events import StepEvents
from .trainings.trainings import Trainings

FIRST = 1000
"""The priority of what a worker of multiprocessing does first at its end."""


class Guard:
    """What is watched in this process."""

    def __init__(self, settings: Settings) -> None:
        self.trainings = Trainings()
        self.fence = Fence(self.trainings, lambda error: self.account.mailbox.stop(error))
        self.losses, self.rows, self.schedules = Losses(), Rows(), Schedules()
        self.collectives = Collectives()
        self.account = Account(
            settings, self.trainings, self.fence, self.rows, self.schedules, self.collectives
        )
        self._is_closed = False

    def install(self) -> None:
        """Subscribe, before the script runs. Handlers of one event are called in this order."""
        trainings, fence, account = self.trainings, self.fence, self.account
        losses, rows, schedules = self.losses, self.rows, self.schedules
        parts = trainings, fence, account, losses, rows, schedules, self.collectives
        trainings.subscribe(fence, rows)
        BackwardEvents(*parts).subscribe()
        losses.subscribe(fence)
        self.collectives.subscribe(fence)
        GradientEvents(*parts).subscribe()
        StepEvents(*parts).subscribe()
        schedules.subscribe(fence)
        Checkpoints(*parts).subscribe()
        Merges(*parts).subscribe()
        rows.subscribe(fence.guarded, fence.is_alive, fence.is_due)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=fence.note_fork)
        atexit.register(self.close)
        register_after_fork(self, Guard._close_with_worker)
        if parent_process() is not None:  # of a worker that imports torch in its function
            self._close_with_worker()
        if has_constructed_any():  # otherwise the objects of the process need not be searched
            trainings.look_for_strangers(fence, rows, schedules)

    def _close_with_worker(self) -> None:
        # Before Python 3.14, multiprocessing ends its workers without the functions of atexit.
        self._is_closed = False
        Finalize(None, self.close, exitpriority=FIRST)

    def close(self) -> None:
        """Wait for open checks, and write the summary: the training is over."""
        if self._is_closed:
            return
        self._is_closed = True
        has_trained = any(one.steps for one in self.trainings)
        if not self.fence.is_dead and (
            self.fence.error or self.account.report.faults or has_trained
        ):
            self.fence.call(self.account.end)
