"""Watches the trainings of this process: it subscribes to the events of torch, and posts."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize, register_after_fork
from typing import Any

import torch

from .. import events
from ..events import (
    Backward,
    Batch,
    Clip,
    Collective,
    DrawnIndex,
    EngineBackward,
    EngineClip,
    Fetch,
    Gradients,
    GraphBackward,
    Joined,
    LossValue,
    MergedAdapter,
    NewCommunication,
    NewFetcher,
    NewIterator,
    NewOptimizer,
    NewScaler,
    NewSchedule,
    OutputGradient,
    PreparedSchedule,
    ScalerStep,
    StageBackward,
    StageGradients,
    Step,
    TrainerEnd,
    Unscale,
    WrapperStep,
    WrapperUnscale,
    Written,
    ZeroGrad,
)
from ..training.parameters import Modules
from ..training.torch_layouts import inner_optimizer
from .callers import place_of_caller
from .checks.views import Alarm
from .data.rows import Rows
from .earlier import Earlier
from .facts import facts_of, masks_asked_for, planned_micro_batches
from .fence import Fence, quietly
from .merges import Merge
from .posting.posts import Post
from .process import captures, is_worker, makes_state, rank, world
from .reporting.account import MOST_OPTIMIZERS, Account
from .sampling.collectives import Collectives
from .sampling.losses import Losses
from .sampling.optimizers import has_constructed_any, instead_of_gradients
from .saves import Checkpoints
from .settings import Settings, report_in
from .states.schedules import Schedules
from .training import UNNUMBERED, Training, training_of

FIRST = 1000
"""The priority of what a worker of multiprocessing does first at its end."""


class Guard:
    """What is watched in this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trainings: list[Training] = []
        self.losses, self.rows, self.schedules = Losses(), Rows(), Schedules()
        self.collectives = Collectives()
        self.fence = Fence(self.trainings, lambda error: self.mailbox.stop(error))
        self.account = Account(
            settings, self.trainings, self.fence, self.rows, self.schedules, self.collectives
        )
        self.mailbox = self.account.mailbox
        self.checkpoints = Checkpoints(self.trainings, self.fence, self.rows, self.schedules)
        self.backwards = 0
        self._scaler: Any = None
        self._reads_inputs = False
        self._in_backward = False
        self._strangers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_closed = False

    def install(self) -> None:
        """Subscribe, before the script runs."""
        on, guarded = events.instrument.on, self.fence.guarded
        is_alive, is_armed, is_due = self.fence.is_alive, self.fence.is_armed, self.fence.is_due
        rows, numbers, losses = self.rows, self.rows.numbers, self.losses

        def is_trainer() -> bool:
            return is_alive() and not is_worker()

        on(NewOptimizer, after=guarded(self._add))
        on(Backward, around=self._backward, when=is_alive)
        on(GraphBackward, around=self._backward, when=is_alive)
        on(StageBackward, around=self._backward, when=is_alive)
        # What a schedule writes is no edit of the loop.
        on(StageGradients, after=guarded(lambda _: self._end_backward()), when=is_armed)
        on(EngineBackward, before=guarded(self._hand), when=is_alive)
        on(OutputGradient, after=guarded(self._pass_on), when=is_armed)
        on(
            LossValue,
            after=guarded(lambda e: losses.called(e.value, e.arguments, e.keywords, e.owner)),
            when=is_due,
        )
        calls = guarded(lambda event: self.collectives.called(event, self._in_backward))
        on(Collective, before=calls, when=self._hears_collectives)
        for kind in (Clip, EngineClip):
            on(kind, before=guarded(self._clip), after=guarded(self._clipped), when=is_armed)
        on(Clip, before=guarded(self._note_clip), when=self.fence.is_new)
        on(Unscale, before=guarded(self._unscale), when=is_armed)
        on(WrapperUnscale, before=guarded(self._unscale_group), when=is_armed)
        on(WrapperStep, around=self._wrapper_step, when=is_alive)
        on(ZeroGrad, before=guarded(self._clear), when=is_armed)
        on(Gradients, before=guarded(self._before_step), when=self.fence.looks_at_step)
        on(Step, after=guarded(self._after_step), when=is_alive)
        on(NewScaler, after=guarded(self._note_scaler))
        on(NewSchedule, after=guarded(lambda event: self.schedules.new(event.owner)))
        on(PreparedSchedule, after=guarded(self._note_prepared))
        on(ScalerStep, around=self._scaler_step, when=is_alive)
        self.checkpoints.subscribe()
        on(MergedAdapter, around=self._merge, when=is_alive)
        on(DrawnIndex, after=guarded(lambda e: rows.drawn(e.owner, e.value)), when=is_alive)
        on(Batch, after=guarded(self._batch), when=is_trainer)
        on(NewIterator, after=guarded(lambda e: numbers.begin(e.owner, e.loader)), when=is_trainer)
        on(NewFetcher, before=quietly(lambda e: numbers.worker_begins(e.dataset)), when=is_worker)
        on(Fetch, after=quietly(lambda e: numbers.worker_has_read(e.owner.dataset)), when=is_worker)
        on(Written, before=guarded(lambda e: self.account.trackers.wrote(e.owner)), when=is_alive)
        on(TrainerEnd, after=guarded(lambda e: rows.trainer_ends(*e.values[:2])), when=is_alive)
        on(Joined, after=guarded(self._joined), when=is_alive)
        on(
            NewCommunication,
            before=guarded(lambda e: self.collectives.communicates(e.hook)),
            when=is_alive,
        )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.fence.note_fork)
        atexit.register(self.close)
        register_after_fork(self, Guard._close_with_worker)
        if parent_process() is not None:  # of a worker that imports torch in its function
            self._close_with_worker()
        if has_constructed_any():  # otherwise the objects of the process need not be searched
            self._look_for_strangers()

    def _look_for_strangers(self) -> None:
        """Find what a script made before it called ``guard()``."""
        earlier = Earlier()
        self._strangers = earlier.waiting
        for schedule in earlier.schedules:
            self.schedules.new(schedule)
        self.trainings += [Training(one, UNNUMBERED) for one in earlier.fresh]
        for scaler in earlier.scalers if earlier.fresh else ():
            self._note_scaler(NewScaler(scaler))
        on = events.instrument.on
        on(Step, after=self.fence.guarded(self._meet), when=lambda: bool(self._strangers))
        on(
            ScalerStep,
            before=self.fence.guarded(self._meet_scaler),
            when=lambda: bool(self._strangers),
        )

    def _give_number(self, training: Training) -> None:
        """Number an optimizer that was made before ``guard()``: by their first steps, as these are
        in one order on all ranks."""
        if training.number == UNNUMBERED:
            training.number = self.account.optimizers
            self.account.optimizers += 1
            self.trainings.sort(key=lambda one: (one.number == UNNUMBERED, one.number))

    def _meet(self, event: Step) -> None:
        if event.owner in self._strangers:
            self._strangers.discard(event.owner)
            self.account.began_late = True
            self._add(NewOptimizer(event.owner))

    def _meet_scaler(self, event: ScalerStep) -> None:
        if event.values[0] in self._strangers:
            self._note_scaler(NewScaler(event.owner))

    def _close_with_worker(self) -> None:
        # Before Python 3.14, multiprocessing ends its workers without the functions of atexit.
        self._is_closed = False
        Finalize(None, self.close, exitpriority=FIRST)

    # -- events --

    def _add(self, event: NewOptimizer) -> None:
        events.instrument.refresh()  # packages were imported since torch was
        self.trainings[:] = (one for one in self.trainings if one.steps or one.optimizer())
        self.rows.restart()
        if len(self.trainings) < MOST_OPTIMIZERS:
            self.trainings.append(Training(event.owner, self.account.optimizers, self.backwards))
        self.account.optimizers += 1

    def _backward(self, event: Backward | GraphBackward, call: Callable[[], Any]) -> Any:
        if self._in_backward:  # one calls the other, and checkpoints are reentrant
            return call()
        self._in_backward = True
        self.fence.call(self._begin_backward, event.owner, event.gradient)
        try:
            return call()
        finally:
            self._in_backward = False
            if self.fence.is_armed():
                self.fence.call(self._end_backward)

    def _begin_backward(self, root: Any, gradient: Any) -> None:
        if not self.fence.is_alone():
            return
        self.backwards += 1
        self.rows.backward()
        self.collectives.backward_begins(root)
        is_scalar = isinstance(root, torch.Tensor) and root.numel() == 1
        self._arm(gradient is not None and not is_scalar)
        for training in self.trainings:
            training.go_on()
        if self.fence.is_armed():
            place = place_of_caller()
            cleared = [one.begin_backward(place) for one in self.trainings if one.armed]
            if any(cleared):
                self.losses.cleared()
            if isinstance(gradient, (list, tuple)) and len(gradient) == 1:
                (gradient,) = gradient
            self.losses.backward(root, self._scaler, gradient)
        elif any(one.skips.are_many for one in self.trainings):
            self.losses.note_root(root)

    def _end_backward(self) -> None:
        for training in self.trainings:
            if training.armed:
                training.end_backward()

    def _arm(self, goes_on: bool) -> None:
        """Arm what is due. ``goes_on``: the backward begins with gradients of another rank."""
        due = [one for one in self.trainings if one.due and not one.armed]
        if not due or captures():
            return
        optimizers = [one.optimizer() for one in self.trainings]
        parameter_ids = {
            id(p) for one in optimizers if one for g in one.param_groups for p in g["params"]
        }
        modules = cache(partial(self._modules, goes_on))
        inner = {id(inner_optimizer(one)) for one in optimizers if one}
        for training in due:
            training.is_inner = id(training.optimizer()) in inner
            if training.is_inner:
                continue
            others = [one for one in optimizers if one and one is not training.optimizer()]
            training.is_shared = any(map(training.shares, others))
            training.arm(parameter_ids, modules, self.fence.guarded)

    def _modules(self, goes_on: bool) -> Modules:
        events.instrument.refresh()  # a package may have wrapped the optimizer since it was made
        return Modules(goes_on)

    def _hand(self, event: EngineBackward) -> None:
        engine, (loss, *_) = event.owner, event.values
        self.losses.note_unscaled(loss)
        if not self.fence.is_due():
            return
        divides = event.keywords.get("scale_wrt_gas", True)
        divides = divides and not getattr(engine, "inside_no_sync_ctxt", False)
        if divides and not engine.fp16_enabled():
            self.losses.hand(loss, engine.gradient_accumulation_steps())

    def _pass_on(self, event: OutputGradient) -> None:
        if event.value is not None and event.value is not event.arguments[0]:
            self.losses.pass_on(event.arguments[0], event.value)

    def _hears_collectives(self) -> bool:
        is_checked = self.fence.is_due() or self.fence.is_armed()
        may_average = not self.trainings or self.collectives.is_between
        return is_checked or (may_average and self.fence.is_alive())

    def _clip(self, event: Clip) -> None:
        ids = {id(parameter) for parameter in event.parameters}
        for training in self.trainings:
            if training.armed and training.holds(ids):
                training.take_used()
                training.begin_clip(ids, event.norm_type)

    def _note_clip(self, event: Clip) -> None:
        ids = {id(parameter) for parameter in event.parameters}
        for training in self.trainings:
            training.note_clip(ids, event.max_norm, self.backwards)

    def _clipped(self, event: Clip) -> None:
        ids = {id(parameter) for parameter in event.parameters}
        for training in self.trainings:
            if training.armed and training.holds(ids):
                training.end_clip(event.value, event.max_norm)

    def _unscale(self, event: Unscale) -> None:
        training = training_of(event.values[0], self.trainings)
        if training is not None:
            training.take_used()
            training.unscale(event.owner)

    def _unscale_group(self, event: WrapperUnscale) -> None:
        training = training_of(event.owner.optimizer, self.trainings)
        if training is not None and training.inner_steps is not None:
            training.take_used()

    def _wrapper_step(self, event: WrapperStep, call: Callable[[], Any]) -> Any:
        training = training_of(getattr(event.owner, "optimizer", None), self.trainings)
        if training is None or training.inner_steps is not None:  # one wrapper calls another
            return call()
        self.fence.call(training.begin_wrapper_step)
        try:
            value = call()
        except BaseException:
            training.inner_steps = None
            raise
        self.fence.call(self._end_wrapper_step, training, event.owner)
        return value

    def _end_wrapper_step(self, training: Training, wrapper: Any) -> None:
        if training.end_wrapper_step():
            self._end_step(training)
        elif training.steps or training.armed:
            self._skip(training, wrapper)

    def _clear(self, event: ZeroGrad) -> None:
        if isinstance(event.owner, torch.nn.Module):
            ids = {id(parameter) for parameter in event.owner.parameters()}
        else:
            ids = {id(p) for group in event.owner.param_groups for p in group["params"]}
        trainings = [one for one in self.trainings if one.holds(ids)]
        is_only_one = len(self.trainings) == 1
        had_gradients = [one.cleared(is_only_one, self.backwards) for one in trainings]
        is_open = any(one.armed and not one.is_sampled for one in trainings)
        if any(had_gradients) or is_open:
            self.losses.cleared()

    def _note_scaler(self, event: NewScaler) -> None:
        self._scaler = event.owner

    def _note_prepared(self, event: PreparedSchedule) -> None:
        if event.owner.step_with_optimizer:
            self.schedules.prepared(event.owner.scheduler)

    def _scaler_step(self, event: ScalerStep, call: Callable[[], Any]) -> Any:
        training = training_of(event.values[0], self.trainings)
        before = training.steps if training is not None else 0
        if training is not None:  # a fused optimizer divides in its step
            self.fence.call(training.unscale, event.owner)
        value = call()
        if training is not None and training.steps == before:
            self.fence.call(self._skip, training, self._scaler)
        return value

    def _skip(self, training: Training, scaler: Any) -> None:
        self._give_number(training)
        training.skipped(self.backwards)
        roots = self.losses.roots() if training.skips.are_many else None
        self._begin_step(training)
        alarm = training.skips.skipped(scaler, training.steps)
        if alarm is not None:
            report_in("training")
            self.account.tell(training, alarm)
        elif roots is not None and not self.mailbox.rank:
            row = training.skips.row
            self.mailbox.call(partial(self._look_at_losses, training, roots, row))

    def _look_at_losses(self, training: Training, roots: torch.Tensor, row: int) -> None:
        """Look at the losses of a skipped step, in the other thread: it waits for the device."""
        is_lost = not bool(torch.isfinite(roots).all())
        alarm = training.skips.lost(is_lost, row, training.steps)
        if alarm is not None:
            report_in("training")
            alarms = [Alarm(alarm.check, alarm.kind, alarm.text, [0], alarm.size)]
            self.account.tell_now(training, alarms)

    def _before_step(self, event: Gradients) -> None:
        training = training_of(event.owner, self.trainings)
        if training is None:
            return
        if event.in_closure and training.is_sampled:
            self.losses.spoil()  # the closure was called before: which of its losses count?
        for candidate in self.trainings if not training.steps and not training.resume else ():
            alarm = candidate.resume.left_by(event.owner) if candidate.resume else None
            if alarm is not None:
                training.alarms.append(alarm)
                candidate.resume = None
        training.before_step()

    def _after_step(self, event: Step) -> None:
        training = training_of(event.owner, self.trainings)
        if training is None or training.is_inner or not self.fence.is_alone():
            return
        if not training.steps and makes_state():
            return
        self._give_number(training)
        if not training.steps and not training.inner_steps:
            report_in("training")
            if not any(one.steps for one in self.trainings) and not rank():
                self.account.report.files.begin()
        if training.inner_steps is not None:
            training.inner_steps += 1
            return
        # A fused optimizer is called for a step that it skips. Only a checked step may ask whether
        # it does, as that waits for the device.
        if training.armed and event.skips:
            self.schedules.step(event.owner, world())
            self._skip(training, self._scaler)
            return
        self._end_step(training)

    def _end_step(self, training: Training) -> None:
        """Note that a step has ended: all ranks have its weights."""
        self.schedules.step(training.optimizer(), world())
        if training.may_be_alone and world() > 1:
            groups = training.optimizer().param_groups
            self.collectives.watch(p for group in groups for p in group["params"])
        for neighbour in self.trainings:
            if neighbour.armed and neighbour is not training:
                neighbour.wait()
        training.leave_out_if_outer()
        self.rows.stepped(training.number)
        if training.after_step(self.backwards, self.rows.batches()):
            for other in (one for one in self.trainings if one is not training):
                training.states.take_saves(other.states)
            post = self._completed(training.post(self.mailbox.rank), training.counts.last)
            post.gradients.lossy = post.gradients.lossy or instead_of_gradients(
                training.optimizer()
            )
            training.disarm()
            has_targets = self.losses.targets_sum() is not None
            self._reads_inputs = world() > 1 and not (
                post.data.rows or post.data.epochs or has_targets
            )
            self.mailbox.send(training, post)
            if not self.mailbox.rank:
                self.account.trackers.look()
            if self.settings.check_only:
                self._end_after_one_step()
        self._begin_step(training)
        self.collectives.step_ended()

    def _begin_step(self, training: Training) -> None:
        self.losses.begin()
        self.rows.begin()
        training.begin_step(self._reads_inputs)

    def _completed(self, post: Post, micro_batches: int) -> Post:
        """Add to a post what belongs to the process, not to one optimizer."""
        batches = self.rows.batches()
        losses = (
            None
            if post.losses.separate
            else self.losses.tensor(bool(post.gradients.dropped), batches)
        )
        post.losses.weight, post.losses.gathers = self.losses.weight, self.collectives.gathers
        post.loop.reduced = self.collectives.reduced
        post.losses.whole_losses, post.losses.goes_on = self.losses.are_whole, self.losses.go_on
        post.losses.factor = self.losses.factor
        post.losses.uncounted = "separate" if post.losses.separate else self.losses.uncounted
        for name, tensor in (
            ("targets", self.losses.targets()),
            ("targets_sum", self.losses.targets_sum()),
            ("passed", self.losses.ratios()),
        ):
            if tensor is not None:
                post.tensors[name] = tensor
        if losses is not None:
            post.tensors["losses"] = losses
        roots = self.losses.roots()
        if roots is not None:
            post.tensors["roots"] = roots
        post.losses.planned = planned_micro_batches()
        post.losses.has_batches = (
            2 * batches > micro_batches or post.losses.planned == micro_batches
        )
        alarm = self.rows.unmasked(masks_asked_for())
        post.alarms += [alarm] if alarm else []
        post.data.rows, post.data.epochs = self.rows.of_step(), self.rows.samples()
        post.data.orders = self.rows.resumed_orders()
        post.data.passes, post.optimizers = self.rows.passes(), len(self.trainings)
        post.gradients.coarse, post.gradients.lossy = (
            self.collectives.coarse,
            self.collectives.lossy,
        )
        post.loop.averages = post.loop.averages or self.collectives.reason
        post.alarms += self.rows.alarms + self.schedules.alarms
        self.rows.alarms, self.schedules.alarms = [], []
        if post.check == 1 and post.optimizer == 0 and not rank():
            started = time.perf_counter()
            known = self.settings.known
            first = next(one for one in self.trainings if one.number == post.optimizer)
            post.facts = facts_of(
                post, micro_batches, self._scaler, known, is_resumed=first.is_resumed
            )
            first.costs.setup += time.perf_counter() - started
        return post

    def _merge(self, event: MergedAdapter, call: Callable[[], Any]) -> Any:
        if not event.has_all:
            return call()
        merge = Merge(event.owner)
        self.fence.call(merge.begin, self.trainings)
        value = call()
        self.fence.call(self._end_merge, merge)
        return value

    def _end_merge(self, merge: Merge) -> None:
        alarm = merge.end()
        if alarm is not None:
            self.account.tell(self.trainings[0], alarm)

    def _batch(self, event: Batch) -> None:
        if event.ended:
            self.rows.ended(event.owner)
        else:
            self.rows.batch(event.owner, event.value, self.fence.is_due())

    def _joined(self, event: Joined) -> None:
        for training in self.trainings:
            training.joined = training.steps

    # -- the end --

    def _end_after_one_step(self) -> None:
        self.mailbox.close()
        raise SystemExit(0)

    def close(self) -> None:
        """Wait for open checks, and write the summary: the training is over."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self.fence.is_dead and (
            self.fence.error
            or self.account.report.faults
            or any(one.steps for one in self.trainings)
        ):
            self.fence.call(self.account.end)
