"""Watches the trainings of this process: it subscribes to the events of torch, and posts."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize, register_after_fork
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.hooks import unserializable_hook

from .. import events
from ..events import (
    Backward,
    Batch,
    Clip,
    DrawnIndex,
    EngineBackward,
    EngineClip,
    Fetch,
    FilledState,
    Gathered,
    Gradients,
    GraphBackward,
    Load,
    LoadedState,
    LossValue,
    MergedAdapter,
    NewCommunication,
    NewFetcher,
    NewIterator,
    NewOptimizer,
    NewScaler,
    NewSchedule,
    OutputGradient,
    PlannedLoad,
    PlannedSave,
    PreparedSchedule,
    RestoredTraining,
    Save,
    SavedTensors,
    ScalerStep,
    StageBackward,
    StageGradients,
    Step,
    TrainerRun,
    Unscale,
    WrapperStep,
    WrapperUnscale,
    Written,
    ZeroGrad,
)
from .averaging import Averaging
from .callers import place_of_caller
from .checks.views import Alarm, Memory
from .facts import facts_of
from .judge import LOCAL_STEPS, judge
from .losses import Losses
from .mailbox import Mailbox
from .merges import Merge
from .parameters import Modules
from .posts import LAST, LocalAlarm, Post
from .process_groups import ProcessGroups
from .report import Report, say, short
from .rows import Rows
from .saved_states import SavedStates
from .saves import note_filled, note_load, note_save
from .schedules import Schedules
from .sentences import known_bug, watched_run
from .settings import CHECKS, Settings, report_in
from .summary import Clock, blind, content, line, merged, not_seen, percent
from .torch_shards import inner_optimizer
from .trackers import News, Trackers
from .trainer_epochs import missing_epochs
from .training import Training

MAKING = {
    "initialize_optimizer_states": "deepspeed.",
    "_init_optim_state": "torch.distributed.checkpoint.",
}
"""The functions that step an optimizer without gradients to make its state, and their packages."""
MOST_OPTIMIZERS = 8
"""Optimizers that are checked: a loop that steps in its backward has one for each parameter."""

FIRST = 1000
"""The priority of what a worker of multiprocessing does first at its end."""


class Guard:
    """What is watched in this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.trainings: list[Training] = []
        self.losses, self.rows, self.schedules = Losses(), Rows(), Schedules()
        self.report = Report(settings)
        self._saves = SavedStates(settings.saves or settings.out, self.report.print)
        keep = settings.out if settings.keep_posts else ""
        self.mailbox = Mailbox(self._judge, settings.budget / 100, settings.every, keep)
        self._optimizers = 0
        """How many were constructed."""
        self.backwards = 0
        self.coarse = False
        self.lossy = ""
        self.error = ""
        """Why this process is watched no more."""
        self._memories: dict[int, Memory] = {}
        self._facts: dict[str, Any] = {}
        self._clock, self.trackers = Clock(), Trackers()
        self._averaging, self._groups = Averaging(), ProcessGroups()
        self._dead = False
        """Whether this process is a worker that a training process forked."""
        self._thread: Any = None
        """The thread that trains."""
        self._scaler: Any = None
        self._in_backward = False
        self._steps_before_scaler = 0
        self._is_saving = False

    def install(self) -> None:
        """Subscribe, before the script runs."""
        on = events.instrument.on
        on(NewOptimizer, after=self._guarded(self._add))
        on(Backward, around=self._backward, when=self._alive)
        on(GraphBackward, around=self._backward, when=self._alive)
        on(StageBackward, around=self._backward, when=self._alive)
        on(StageGradients, after=self._guarded(self._note_gradients), when=self._is_armed)
        on(EngineBackward, before=self._guarded(self._hand), when=self._is_due)
        on(OutputGradient, after=self._guarded(self._pass_on), when=self._is_armed)
        on(LossValue, after=self._guarded(self._loss), when=self._is_due)
        on(Gathered, before=self._guarded(self._gather), when=self._is_due)
        for kind in (Clip, EngineClip):
            on(
                kind,
                before=self._guarded(self._clip),
                after=self._guarded(self._clipped),
                when=self._is_armed,
            )
        on(Unscale, before=self._guarded(self._unscale), when=self._is_armed)
        on(WrapperUnscale, before=self._guarded(self._unscale_group), when=self._is_armed)
        on(WrapperStep, around=self._wrapper_step, when=self._alive)
        on(ZeroGrad, before=self._guarded(self._clear), when=self._is_armed)
        on(Gradients, before=self._guarded(self._before_step), when=self._looks_at_step)
        on(Step, after=self._guarded(self._after_step), when=self._alive)
        on(NewScaler, after=self._guarded(self._note_scaler))
        on(NewSchedule, after=self._guarded(lambda event: self.schedules.new(event.owner)))
        on(PreparedSchedule, after=self._guarded(self._note_prepared))
        on(ScalerStep, around=self._scaler_step, when=self._alive)
        on(LoadedState, before=self._guarded(self._load), when=self._alive)
        on(LoadedState, after=self._guarded(self._loaded), when=self._alive)
        on(FilledState, after=self._guarded(self._note_filled), when=self._alive)
        on(Load, after=self._guarded(self._note_load), when=self._alive)
        on(RestoredTraining, after=self._guarded(self._note_load), when=self._alive)
        on(Save, around=self._save, when=self._alive)
        on(PlannedSave, around=self._save, when=self._alive)
        on(SavedTensors, around=self._save, when=self._alive)
        on(PlannedLoad, after=self._guarded(self._note_planned_load), when=self._alive)
        on(MergedAdapter, around=self._merge, when=self._alive)
        on(DrawnIndex, after=self._guarded(self._drawn), when=self._alive)
        on(Batch, after=self._guarded(self._batch), when=self._alive)
        on(NewIterator, after=self._guarded(self._new_iterator), when=self._alive)
        on(NewFetcher, before=_quietly(self._worker_begins), when=_is_worker)
        on(Fetch, after=_quietly(self._worker_has_read), when=_is_worker)
        on(Written, before=self._guarded(self._note_writer), when=self._alive)
        on(TrainerRun, after=self._guarded(self._end_of_trainer), when=self._alive)
        on(NewCommunication, before=self._guarded(self._communicates), when=self._alive)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)
        register_after_fork(self, Guard._close_with_worker)
        if parent_process() is not None:  # of a worker that imports torch in its function
            self._close_with_worker()

    # -- whether to look --

    def _alive(self) -> bool:
        return not self._dead and not self.error

    def _is_due(self) -> bool:
        return self._alive() and any(training.due for training in self.trainings)

    def _looks_at_step(self) -> bool:
        return self._alive() and any(one.armed or one.resume for one in self.trainings)

    def _is_armed(self) -> bool:
        return self._alive() and any(training.armed for training in self.trainings)

    def _forked(self) -> None:
        # A worker is forked by a process that has trained, a rank by one that has not.
        self._dead = bool(self.error) or any(training.steps for training in self.trainings)

    def _close_with_worker(self) -> None:
        # Multiprocessing ends its workers without the functions of atexit.
        Finalize(None, self.close, exitpriority=FIRST)

    def _safely(self, handler: Callable[..., None], *arguments: Any) -> None:
        """Call a handler, time it, and keep its faults from the training."""
        started, training = time.perf_counter(), self._spender()
        try:
            handler(*arguments)
        except Exception as error:
            self._stop(short(error))
        training = training or self._spender()
        if training is not None:
            training.spend(time.perf_counter() - started)

    def _spender(self) -> Training | None:
        """The training for which a handler works now."""
        if len(self.trainings) == 1:
            return self.trainings[0]
        return next((training for training in self.trainings if training.armed), None)

    def _stop(self, error: str) -> None:
        """Watch no more, after a fault of guard itself."""
        if self.error:
            return
        self.error = error
        report_in("training")
        for training in self.trainings:
            training.disarm()
        say(f"stopped on rank {os.environ.get('RANK', 0)}, the training goes on: {error}")
        self.mailbox.stop(error)

    def _guarded(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        # Torch would warn of other hooks when a user saves a tensor that has them.
        return unserializable_hook(partial(self._safely, handler))

    def _of(self, optimizer: Any) -> Training | None:
        return next((one for one in self.trainings if one.optimizer() is optimizer), None)

    # -- events --

    def _add(self, event: NewOptimizer) -> None:
        events.instrument.refresh()  # packages were imported since torch was
        self.trainings = [one for one in self.trainings if one.steps or one.optimizer()]
        self.rows.restart()
        if len(self.trainings) < MOST_OPTIMIZERS:
            self.trainings.append(Training(event.owner, self._optimizers, self.backwards))
        self._optimizers += 1

    def _backward(self, event: Backward | GraphBackward, call: Callable[[], Any]) -> Any:
        if self._in_backward:  # one calls the other, and checkpoints are reentrant
            return call()
        self._in_backward = True
        self._safely(self._begin_backward, event.owner, event.gradient)
        try:
            return call()
        finally:
            self._in_backward = False
            if self._is_armed():
                self._safely(self._end_backward)

    def _is_alone(self) -> bool:
        """Whether one thread trains: gradients and losses of two could not be told apart."""
        thread = threading.current_thread()
        if self._thread is None or not self._thread.is_alive():
            self._thread = thread
        if thread is not self._thread:
            self._stop("two threads of this process train")
        return thread is self._thread

    def _begin_backward(self, root: Any, gradient: Any) -> None:
        if not self._is_alone():
            return
        self.backwards += 1
        self.rows.backward()
        self._averaging.backward_begins()
        is_scalar = isinstance(root, torch.Tensor) and root.numel() == 1
        self._arm(gradient is not None and not is_scalar)
        for training in self.trainings:
            training.go_on()
        if self._is_armed():
            place = place_of_caller()
            cleared = [one.begin_backward(place) for one in self.trainings if one.armed]
            if any(cleared):
                self.losses.cleared()
            if isinstance(gradient, (list, tuple)) and len(gradient) == 1:
                (gradient,) = gradient
            self.losses.backward(root, self._scaler, gradient)
        elif any(one.skips.are_many for one in self.trainings):
            self.losses.note_root(root)

    def _note_gradients(self, event: StageGradients) -> None:
        self._end_backward()  # what a schedule writes is no edit of the loop

    def _end_backward(self) -> None:
        for training in self.trainings:
            if training.armed:
                training.end_backward()

    def _arm(self, goes_on: bool) -> None:
        """Arm what is due. ``goes_on``: the backward begins with gradients of another rank."""
        due = [one for one in self.trainings if one.due and not one.armed]
        if not due or _captures():
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
            training.arm(parameter_ids, modules, self._guarded)

    def _modules(self, goes_on: bool) -> Modules:
        events.instrument.refresh()  # a package may have wrapped the optimizer since it was made
        return Modules(goes_on)

    def _loss(self, event: LossValue) -> None:
        self.losses.called(event.value, event.arguments, event.keywords, event.owner, event.name)

    def _hand(self, event: EngineBackward) -> None:
        engine, (loss, *_) = event.owner, event.values
        divides = event.keywords.get("scale_wrt_gas", True)
        divides = divides and not getattr(engine, "inside_no_sync_ctxt", False)
        if divides and not engine.fp16_enabled():
            self.losses.hand(loss)

    def _pass_on(self, event: OutputGradient) -> None:
        if event.value is not None and event.value is not event.arguments[0]:
            self.losses.pass_on(event.arguments[0], event.value)

    def _gather(self, event: Gathered) -> None:
        self.losses.gathers = self.losses.gathers or not self._in_backward

    def _clip(self, event: Clip) -> None:
        ids = {id(parameter) for parameter in event.parameters}
        for training in self.trainings:
            if training.armed and training.holds(ids):
                training.take_used()
                training.begin_clip(ids, event.norm_type)

    def _clipped(self, event: Clip) -> None:
        ids = {id(parameter) for parameter in event.parameters}
        for training in self.trainings:
            if training.armed and training.holds(ids):
                training.end_clip(event.value, event.max_norm)

    def _unscale(self, event: Unscale) -> None:
        training = self._of(event.values[0])
        if training is not None:
            training.take_used()
            training.unscale(event.owner)

    def _unscale_group(self, event: WrapperUnscale) -> None:
        training = self._of(event.owner.optimizer)
        if training is not None and training.inner_steps is not None:
            training.take_used()

    def _wrapper_step(self, event: WrapperStep, call: Callable[[], Any]) -> Any:
        training = self._of(getattr(event.owner, "optimizer", None))
        if training is None or training.inner_steps is not None:  # one wrapper calls another
            return call()
        self._safely(training.begin_wrapper_step)
        try:
            value = call()
        except BaseException:
            training.inner_steps = None
            raise
        self._safely(self._end_wrapper_step, training, event.owner)
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

    def _end_of_trainer(self, event: TrainerRun) -> None:
        self.rows.alarms += list(missing_epochs(event.owner))

    def _note_writer(self, event: Written) -> None:
        self.trackers.wrote(event.owner)

    def _note_scaler(self, event: NewScaler) -> None:
        self._scaler = event.owner

    def _note_prepared(self, event: PreparedSchedule) -> None:
        if event.owner.step_with_optimizer:
            self.schedules.prepared(event.owner.scheduler)

    def _scaler_step(self, event: ScalerStep, call: Callable[[], Any]) -> Any:
        training = self._of(event.values[0])
        before = training.steps if training is not None else 0
        if training is not None:  # a fused optimizer divides in its step
            self._safely(training.unscale, event.owner)
        value = call()
        if training is not None and training.steps == before:
            self._safely(self._skip, training, self._scaler)
        return value

    def _skip(self, training: Training, scaler: Any) -> None:
        training.skipped(self.backwards)
        roots = self.losses.roots() if training.skips.are_many else None
        self._begin_step(training)
        alarm = training.skips.skipped(scaler, training.steps)
        if alarm is not None:
            report_in("training")
            self._tell(training, alarm)
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
            self._tell_now(training, alarms)

    def _tell(self, training: Training, alarm: LocalAlarm) -> None:
        """Tell an alarm now, on rank 0: a training that takes no step has no check either."""
        if self.mailbox.rank:
            training.alarms.append(alarm)
            return
        alarms = [Alarm(alarm.check, alarm.kind, alarm.text, [0], alarm.size)]
        self.mailbox.call(lambda: self._tell_now(training, alarms))

    def _tell_now(self, training: Training, alarms: list[Alarm]) -> None:
        self._send(self.report.tell(training.steps, training.number, alarms))
        self._write(has_ended=False)

    def _before_step(self, event: Gradients) -> None:
        training = self._of(event.owner)
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
        training = self._of(event.owner)
        if training is None or training.is_inner or not self._is_alone():
            return
        if not training.steps and _makes_state():
            return
        if not training.steps and not training.inner_steps:
            report_in("training")
            if not any(one.steps for one in self.trainings) and not _rank():
                self.report.files.begin()
        if training.inner_steps is not None:
            training.inner_steps += 1
            return
        # A fused optimizer is called for a step that it skips. Only a checked step may ask whether
        # it does, as that waits for the device.
        if training.armed and event.skips:
            self.schedules.step(event.owner, _world())
            self._skip(training, self._scaler)
            return
        self._end_step(training)

    def _end_step(self, training: Training) -> None:
        """Note that a step has ended: all ranks have its weights."""
        self._groups.step_ended()
        alarm = self._groups.alarm() if training.steps >= LOCAL_STEPS else None
        if alarm is not None:
            self._tell(training, alarm)
        self.schedules.step(training.optimizer(), _world())
        if training.may_be_alone and _world() > 1:
            groups = training.optimizer().param_groups
            self._averaging.watch(p for group in groups for p in group["params"])
        self._averaging.step_ended()
        for neighbour in self.trainings:
            if neighbour.armed and neighbour is not training:
                neighbour.wait()
        training.leave_out_if_outer()
        if training.after_step(self.backwards, self.rows.batches()):
            for other in (one for one in self.trainings if one is not training):
                training.states.take_saves(other.states)
            post = self._completed(training.post(self.mailbox.rank), training.step_backwards)
            training.disarm()
            self.mailbox.send(training, post)
            if not self.mailbox.rank:
                self.trackers.look()
            if self.settings.check_only:
                self._end_after_one_step()
        self._begin_step(training)

    def _begin_step(self, training: Training) -> None:
        self.losses.begin()
        self.rows.begin()
        training.begin_step()

    def _completed(self, post: Post, micro_batches: int) -> Post:
        """Add to a post what belongs to the process, not to one optimizer."""
        batches = self.rows.batches()
        losses = None if post.separate else self.losses.tensor(bool(post.dropped), batches)
        post.squared, post.gathers = self.losses.are_squared, self.losses.gathers
        post.whole_losses, post.goes_on = self.losses.are_whole, self.losses.go_on
        post.factor = self.losses.factor
        for name, tensor in (("targets", self.losses.targets()), ("passed", self.losses.ratios())):
            if tensor is not None:
                post.tensors[name] = tensor
        if losses is not None:
            post.tensors["losses"] = losses
        roots = self.losses.roots()
        if roots is not None:
            post.tensors["roots"] = roots
        post.rows, post.epochs = self.rows.of_step(), self.rows.samples()
        post.passes, post.optimizers = self.rows.passes(), len(self.trainings)
        post.coarse, post.lossy = self.coarse, self.lossy
        post.averages = post.averages or self._averaging.reason
        post.alarms += self.rows.alarms + self.schedules.alarms
        self.rows.alarms, self.schedules.alarms = [], []
        if post.check == 1 and post.optimizer == 0 and not _rank():
            started = time.perf_counter()
            post.facts = facts_of(post, micro_batches, self._scaler, self.settings.known)
            self.trainings[0].costs.setup += time.perf_counter() - started
        return post

    def _load(self, event: LoadedState) -> None:
        training = self._of(event.owner)
        if training is not None:
            training.states.begin_load(event.owner)

    def _note_planned_load(self, event: PlannedLoad) -> None:
        for training in self.trainings:
            training.states.is_filled = True

    def _loaded(self, event: LoadedState) -> None:
        training = self._of(event.owner)
        if training is not None:
            training.loaded(self.schedules.of)
            self.rows.restart(goes_on=True)

    def _note_filled(self, event: FilledState) -> None:
        note_filled(event, self.trainings)

    def _note_load(self, event: Load) -> None:
        note_load(event, self.trainings)
        if event.has_loaded:
            self.rows.restart(goes_on=True)

    def _note_save(self, event: Save) -> None:
        note_save(event, self.trainings, self.rows.begun())

    def _save(self, event: Save, call: Callable[[], Any]) -> Any:
        if self._is_saving or threading.current_thread() is not self._thread:
            return call()  # one calls the other, and a thread saves what was copied before
        self._is_saving = True
        self._safely(self._note_save, event)
        try:
            return call()
        finally:
            self._is_saving = False

    def _merge(self, event: MergedAdapter, call: Callable[[], Any]) -> Any:
        if not event.has_all:
            return call()
        merge = Merge(event.owner)
        self._safely(merge.begin, self.trainings)
        value = call()
        self._safely(self._end_merge, merge)
        return value

    def _end_merge(self, merge: Merge) -> None:
        alarm = merge.end()
        if alarm is not None:
            self._tell(self.trainings[0], alarm)

    def _drawn(self, event: DrawnIndex) -> None:
        self.rows.drawn(event.owner, event.value)

    def _batch(self, event: Batch) -> None:
        if _is_worker():
            return
        if event.ended:
            self.rows.ended(event.owner)
        else:
            self.rows.batch(event.owner, event.value, self._is_due())

    def _new_iterator(self, event: NewIterator) -> None:
        if not _is_worker():
            self.rows.numbers.begin(event.owner)

    def _worker_begins(self, event: NewFetcher) -> None:
        self.rows.numbers.worker_begins(event.dataset)

    def _worker_has_read(self, event: Fetch) -> None:
        self.rows.numbers.worker_has_read(event.owner.dataset)

    def _communicates(self, event: NewCommunication) -> None:
        self.coarse = True
        if "powersgd" in getattr(event.hook, "__name__", "").lower():
            self.lossy = "PowerSGD"
        elif not getattr(event.hook, "__module__", "torch").startswith("torch."):
            self.lossy = "the loop's communication hook"

    # -- judging, in the thread of rank 0 --

    def _judge(self, posts: list[Post]) -> None:
        memory = self._memories.setdefault(posts[0].optimizer, Memory(saved=self._saves.states))
        if posts[0].check != LAST:
            self.report.note_check(posts[0].step)
        if posts[0].facts:
            self._tell_facts(posts[0].facts)
        alarms = judge(posts, memory)
        if memory.has_saved:
            self._saves.write()
            memory.has_saved = False
        lines = self.report.tell(posts[0].step, posts[0].optimizer, alarms)
        self._send(lines)
        if posts[0].check == 1:
            is_first = self.report.checks == 1
            self.report.say_not_seen(self._not_seen() if is_first else memory.not_seen.values())
        if self._clock.is_due(self.report.checks, len(self.report.faults)):
            self._write(has_ended=False)

    def _tell_facts(self, facts: dict[str, Any]) -> None:
        self.report.say(watched_run(facts["releases"], facts["settings"]))
        self.report.bugs = facts.pop("known_bugs")
        for bug in self.report.bugs:
            if bug["certain"]:  # an alarm names the others, if it has the signature
                self.report.print(known_bug(bug))
        self._facts = facts

    # -- the end --

    def _end_after_one_step(self) -> None:
        self.mailbox.close()
        raise SystemExit(0)

    def close(self) -> None:
        """Wait for open checks, and write the summary: the training is over."""
        atexit.unregister(self.close)
        if not self._dead and (
            self.error or self.report.faults or any(one.steps for one in self.trainings)
        ):
            self._safely(self._end)

    def _end(self) -> None:
        posts = list(self._last_posts()) if self.mailbox.has_begun else []
        for unjudged in [*self.mailbox.close(), *posts]:
            self._judge(unjudged)
        if not self.mailbox.rank:
            self._finish()

    def _last_posts(self) -> Iterator[list[Post]]:
        """Send what rank 0 does not know yet; yields that of a rank that has all of a training."""
        rank = self.mailbox.rank
        for training in self.trainings:
            if training.is_complete and not rank and training.states:
                yield [training.last_post(rank)]
            elif not training.is_complete and (rank or training.states):
                self.mailbox.send(training, training.last_post(rank))

    def _finish(self) -> None:
        """Tell the summary, on rank 0, and write it for the last time."""
        training = self._longest()
        lines = self.report.tell(training.steps, 0, self._late_alarms())
        self._send(lines, is_last=True)
        cost = training.cost(self.mailbox.seconds)
        self.report.say(line(training.steps, self.report, cost, _restarts()))
        self.report.say_not_seen(self._not_seen())
        self.trackers.close()
        self._write(has_ended=True)

    def _send(self, lines: list[str], is_last: bool = False) -> None:
        """Send what the user's trackers get."""
        training = self._longest()
        cost = training.cost(self.mailbox.seconds)
        numbers = {
            "guard/alarms": float(len(self.report.faults)),
            "guard/cost_percent": percent(cost),
            "guard/check_ms": 1000 * cost.each,
        }
        self.trackers.send(News(training.steps, numbers, lines), is_last)

    def _longest(self) -> Training:
        """The training with the most steps."""
        return max(self.trainings, key=lambda one: one.steps)

    def _not_seen(self) -> list[str]:
        memories = self._memories.values()
        sentences = not_seen(self.trainings, memories, self._optimizers, MOST_OPTIMIZERS)
        if self.error and self.trainings:
            last = self._longest().steps
            sentences.insert(0, f"steps after step {last} are not checked: guard had a fault")
        if self.report.checks:
            checks = self.settings.checks or CHECKS
            reasons = blind(merged(memories), self._facts, bool(self.rows.loaders))
            sentences += [text for check, text in reasons.items() if check in checks]
        return list(dict.fromkeys(sentences))

    def _write(self, has_ended: bool) -> None:
        training = self._longest()
        self.report.files.write(
            content(
                training.steps,
                self.report,
                training.cost(self.mailbox.seconds),
                list(self._memories.values()),
                self._facts,
                ended=has_ended,
                restarts=_restarts(),
                setup_s=sum(one.costs.setup for one in self.trainings),
                not_seen=self._not_seen(),
                notes=[*self.mailbox.notes, *self.trackers.notes],
                error=self.error,
            )
        )

    def _late_alarms(self) -> list[Alarm]:
        """What this rank noticed after its last check."""
        alarms = [*self.rows.alarms, *self.schedules.alarms]
        alarms += [one for each in self.trainings for one in each.alarms]
        alarms += filter(None, [self._groups.alarm()])
        rank = self.mailbox.rank
        late = [Alarm(one.check, one.kind, one.text, [rank], one.size) for one in alarms]
        for memory in self._memories.values():
            # The loop may have averaged since: then no check came to say so.
            late += [] if self._averaging.reason else memory.held.values()
            memory.not_seen.pop("alone", None)
        return late + [one.pending for one in self._memories.values() if one.pending]


def _is_worker() -> bool:
    """Whether this process reads rows for another one."""
    return torch.utils.data.get_worker_info() is not None


def _quietly(handler: Callable[[Any], None]) -> Callable[[Any], None]:
    """A handler in a worker of a loader, which reports nothing."""

    def handle(event: Any) -> None:
        with contextlib.suppress(Exception):
            handler(event)

    return handle


def _rank() -> int:
    is_up = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if is_up else int(os.environ.get("RANK") or 0)


def _makes_state() -> bool:
    """Whether a package steps the optimizer, before any training, to make its state."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        package = MAKING.get(frame.f_code.co_name)
        if package and str(frame.f_globals.get("__name__", "")).startswith(package):
            return True
        frame = frame.f_back
    return False


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def _restarts() -> int:
    """How often torchrun has started the ranks again, after one had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def _captures() -> bool:
    """Whether a CUDA graph is captured, which would replay the checks."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
