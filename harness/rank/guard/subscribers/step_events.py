"""The steps of this process: each is counted, and a checked one is posted."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ... import events
from ...events import Gradients, ScalerStep, Step, WrapperStep
from ..facts import facts_of, masks_asked_for, planned_micro_batches
from ..posting.posts import Post
from ..process import makes_state, rank, world
from ..sampling.optimizers import instead_of_gradients
from ..settings import report_in
from ..trainings.training import Training
from .subscriber import Subscriber


class StepEvents(Subscriber):
    """Counts the steps of trainings, also those of wrappers and those that a scaler skips."""

    _reads_inputs = False
    """Whether the inputs of models say which rows a rank has, as nothing else does."""

    def subscribe(self) -> None:
        """Subscribe to steps."""
        on, fence = events.instrument.on, self.fence
        on(Gradients, before=fence.guarded(self._before), when=fence.looks_at_step)
        on(Step, after=fence.guarded(self._after), when=fence.is_alive)
        on(WrapperStep, around=self._wrapper_step, when=fence.is_alive)
        on(ScalerStep, around=self._scaler_step, when=fence.is_alive)

    def _before(self, event: Gradients) -> None:
        training = self.trainings.of(event.owner)
        if training is None:
            return
        if event.in_closure and training.checked.is_sampled:
            self.losses.spoil()  # the closure was called before: which of its losses count?
        for candidate in (
            self.trainings if not (training.steps or training.states.next_resume) else ()
        ):
            resume = candidate.states.next_resume
            alarm = resume.left_by(event.owner) if resume else None
            if alarm is not None:
                training.alarms.append(alarm)
                candidate.states.next_resume = None
        training.before_step()

    def _after(self, event: Step) -> None:
        training = self.trainings.of(event.owner)
        if training is None or training.role.is_inner or not self.fence.is_alone():
            return
        if not training.steps and makes_state():
            return
        self.trainings.give_number(training)
        if not training.steps and not training.role.inner_steps:
            report_in("training")
            if not any(one.steps for one in self.trainings) and not rank():
                self.account.report.files.begin()
        if training.role.inner_steps is not None:
            training.role.inner_steps += 1
            return
        # A fused optimizer is called for a step that it skips. Only a checked step may ask whether
        # it does, as that waits for the device.
        if training.armed and event.skips:
            self.schedules.step(event.owner, world())
            self._skip(training, self.trainings.scaler)
            return
        self._end(training)

    def _wrapper_step(self, event: WrapperStep, call: Callable[[], Any]) -> Any:
        training = self.trainings.of(getattr(event.owner, "optimizer", None))
        if training is None or training.role.inner_steps is not None:  # one wrapper calls another
            return call()
        self.fence.call(training.begin_wrapper_step)
        try:
            value = call()
        except BaseException:
            training.role.inner_steps = None
            raise

        def end() -> None:
            if training.end_wrapper_step():
                self._end(training)
            elif training.steps or training.armed:
                self._skip(training, event.owner)

        self.fence.call(end)
        return value

    def _scaler_step(self, event: ScalerStep, call: Callable[[], Any]) -> Any:
        training = self.trainings.of(event.values[0])
        before = training.steps if training is not None else 0
        if training is not None:  # a fused optimizer divides in its step
            self.fence.call(training.checked.clips.unscale, event.owner, training.armed)
        value = call()
        if training is not None and training.steps == before:
            self.fence.call(self._skip, training, self.trainings.scaler)
        return value

    def _skip(self, training: Training, scaler: Any) -> None:
        self.trainings.give_number(training)
        training.skipped(self.trainings.backwards)
        roots = self.losses.roots() if training.skips.are_many else None
        self._begin(training)
        alarm = training.skips.skipped(scaler, training.steps)
        mailbox = self.account.mailbox
        if alarm is not None:
            report_in("training")
            self.account.tell(training, alarm)
        elif roots is not None and not mailbox.rank:
            row = training.skips.row
            mailbox.call(partial(self._look_at_losses, training, roots, row))

    def _look_at_losses(self, training: Training, roots: torch.Tensor, row: int) -> None:
        """Look at the losses of a skipped step, in the other thread: it waits for the device."""
        is_lost = not bool(torch.isfinite(roots).all())
        alarm = training.skips.lost(is_lost, row, training.steps)
        if alarm is not None:
            report_in("training")
            self.account.tell_now(training, alarm)

    def _begin(self, training: Training) -> None:
        self.losses.begin()
        self.rows.begin()
        modules = training.model.modules if training.due else None
        training.forward.begin_step(modules, self._reads_inputs)

    def _end(self, training: Training) -> None:
        """Note that a step has ended: all ranks have its weights."""
        self.schedules.step(training.optimizer(), world())
        if training.checked.is_unreduced and world() > 1:
            groups = training.optimizer().param_groups
            self.collectives.watch(p for group in groups for p in group["params"])
        for neighbour in self.trainings:
            if neighbour.armed and neighbour is not training:
                neighbour.wait()
        training.leave_out_if_outer()
        self.rows.stepped(training.number)
        if training.after_step(self.trainings.backwards, self.rows.batches()):
            self._post(training)
        self._begin(training)
        self.collectives.step_ended()

    def _post(self, training: Training) -> None:
        for other in (one for one in self.trainings if one is not training):
            training.states.take_saves(other.states)
        mailbox = self.account.mailbox
        post = training.post(mailbox.rank)
        self._describe(post, training)
        training.disarm()
        has_targets = self.losses.targets_sum() is not None
        self._reads_inputs = world() > 1 and not (post.data.rows or post.data.epochs or has_targets)
        mailbox.send(training, post)
        if self.account.settings.check_only:
            mailbox.close()
            raise SystemExit(0)

    def _describe(self, post: Post, training: Training) -> None:
        """Add to a post what belongs to the process, not to one optimizer."""
        micro_batches, batches = training.counts.last, self.rows.batches()
        self.losses.describe(post, batches)
        post.losses.planned = planned_micro_batches()
        post.losses.has_batches = (
            2 * batches > micro_batches or post.losses.planned == micro_batches
        )
        self.rows.describe(post, masks_asked_for())
        self.collectives.describe(post)
        post.gradients.lossy = post.gradients.lossy or instead_of_gradients(training.optimizer())
        post.run.optimizers = len(self.trainings)
        post.alarms += self.schedules.alarms
        self.schedules.alarms = []
        if post.check == 1 and post.optimizer == 0 and not rank():
            started = time.perf_counter()
            post.run.facts = facts_of(
                post,
                micro_batches,
                self.trainings.scaler,
                self.account.settings.known,
                is_resumed=training.states.is_resumed,
            )
            training.costs.setup += time.perf_counter() - started
