"""Records what each step of a probed training does, without a change of the script.

A ``Watch`` subscribes to the optimizer's steps. ``micro_batches`` records the calls of the model,
``gradients`` what happens to its gradients before a step, and ``draws`` its random numbers.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.rank import events, shims
from harness.rank.guard.facts import impossible_bugs
from harness.rank.probe import compiled, cuda_calls, modes, settings
from harness.rank.probe.exchange import Assignment
from harness.rank.probe.findings.averages import Averages
from harness.rank.probe.findings.optimizers import Optimizers
from harness.rank.probe.findings.saves import Saves
from harness.rank.probe.findings.schedules import Schedules
from harness.rank.probe.findings.unlike import objects_unlike_by_design, unlike_by_design
from harness.rank.probe.findings.workers import Workers
from harness.rank.probe.recording import draws, losses
from harness.rank.probe.recording.gradients import Gradients
from harness.rank.probe.recording.micro_batches import MicroBatches
from harness.rank.probe.recording.noise import Noise
from harness.rank.probe.recording.parameters import Engine, Optimized, fill_memory
from harness.rank.probe.recording.places import Places
from harness.rank.probe.recording.record import Record
from harness.rank.probe.recording.samples import draw_one_order

SITE = "/site-packages/"
PACKAGES = (SITE, "/dist-packages/")

OUTSIDE = 1e-6
"""If something other than a step changes weights by more than this part of their size, it is
reported: averages that an evaluation swaps in come back within rounding."""

PATIENCE = 100
"""Backwards without an optimizer, after which none is expected: the script changes its weights
itself."""


class Watch:
    """The recorder of a rank. After the last step it calls ``finish``."""

    def __init__(self, assignment: Assignment, finish: Callable[[], None]) -> None:
        self.assignment, self.done = assignment, finish
        self.record = Record(assignment.steps)
        self.noise = Noise(assignment)
        keeps_batch = bool(assignment.relations)
        self.model = MicroBatches(self.record, self.noise, self._meet, keeps_batch, assignment.rows)
        self.engine: Engine | None = None
        self.reported: losses.Losses = []
        self.schedules = Schedules()
        self.optimizers, self.workers = Optimizers(), Workers()
        is_compared = assignment.perturb is None and not int(os.environ.get("RANK", 0))
        self.saves = Saves(self.model.names, is_compared)
        self.averages = Averages(self.model.names)
        self.mode = modes.Mode(assignment.mode)
        self._compiled_before = compiled.graphs()
        self._saved_late = False
        """Whether an asynchronous save has begun."""
        self._backwards = 0
        self._left: dict[str, Any] = {}
        """The weights after the last step."""
        self._numbers: dict[Any, int] = {}
        """The numbers of the optimizers, from 0, in the order of their first steps."""
        self._untouched: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers all of whose steps a scaler has skipped so far."""

    def records(self) -> dict[str, Any]:
        """What the rank writes to its file."""
        current, steps, assignment = self.record.now, self.record.steps, self.assignment
        if steps:
            watchers = self.workers, self.saves
            steps[0] = replace(
                steps[0],
                **({} if self.engine else self.optimizers.report()),
                checkpoints=self.mode.checkpoints,
                compiled=compiled.graphs() > self._compiled_before,
                remarks=[line for watcher in watchers for line in watcher.report()],
            )
        records = {
            "steps": steps,
            "skipped": current.skipped,
            "backwards": self._backwards,
            "infinite": self.record.finite.place or current.overflow,
            "seen": self.record.seen,
            "rows_dimension": self.model.rows_dimension,
            "reported": self.reported,
            "saves": self.saves.entries,
            "releases": _releases(),
            "imported": frozenset(file.rpartition(SITE)[2] for file in _files() if SITE in file),
            "loaded": _loaded(assignment.cwd),
            "on_cpu": dict(cuda_calls.uses),
            "schedule": {},
            "relations": {},
        }
        others = assignment.saves or assignment.epoch or assignment.shift
        moves = self.noise.is_random or self.engine is not None
        if not (others or moves or self.record.is_open()):  # nothing is trained after this
            records["schedule"] = self.schedules.lengths([step.lr[0] for step in steps])
        if assignment.relations and self.model.root is not None:  # these import more
            from harness.rank.probe.findings.model_relations import answers

            root, batch = self.model.root, self.model.batch
            records["relations"] = answers(assignment.relations, root, batch)
        return records

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""
        if self.assignment.places:  # within the calls that self.model records
            Places(self.record, self.model, self.assignment.steps - 1).install()
        self.model.install(self.assignment.dropout)
        self.mode.install()
        Gradients(self.record, self.model).install()
        events.instrument.on(events.Step, before=self._before_step, after=self._after_step)
        events.instrument.on(events.Gradients, before=self._ready, when=self.record.is_open)
        events.instrument.on(events.Backward, before=self._await_optimizer)
        if self.assignment.one_order:
            draw_one_order()
        moves = bool(self.assignment.shift) or self.noise.is_random
        mode = self.assignment.mode
        eager = mode == modes.EAGER or (moves and not mode)
        compiled.install(eager, self.model.around_compiled)
        losses.note_reports(self.reported, lambda: len(self.record.seen) - 1)
        for watcher in (self.schedules, self.optimizers, self.workers, self.saves):
            watcher.install()
        self.model.on_evaluation = self.saves.evaluate
        draws.note_stops(self.record.note_stop)

    def _meet(self) -> None:
        """Prepare for the model, which is called for the first time."""
        self.mode.meet(self.model.root)
        events.instrument.refresh()
        if (engine := self.model.engine) is not None:
            self.engine = Engine(engine)
            on = events.instrument.on
            on(events.TrainerStep, of=engine, before=self._before_engine, after=self._after_engine)

    # -- steps --

    def _before_step(self, event: events.Step) -> None:
        if self.engine is not None:
            return
        self._end_if_done()
        if not self.record.is_open():
            return
        if event.closure is not None:
            weights = self._optimized(event.owner).weights()
            self.record.now.outside = self._outside(weights)
        elif event.skips:
            if not event.owner.state:
                self._untouched.add(event.owner)
            self._filled = fill_memory()

    def _await_optimizer(self, event: events.Backward) -> None:
        """End a script that has made no optimizer for long: it would run to its own end."""
        self._backwards += 1
        if self._backwards > PATIENCE and not self.optimizers.any_made and self.engine is None:
            self.done()

    def _ready(self, event: events.Gradients) -> None:
        begun = self.model.root is not None or self.record.now.parts or event.in_closure
        if self.engine is None and begun:  # otherwise DeepSpeed makes its optimizer's state
            self.optimizers.look(self.model.names.items())
            self._look(self._optimized(event.owner))

    def _optimized(self, optimizer: Any) -> Optimized:
        return Optimized(optimizer, self.model.names.name, optimizer in self._untouched)

    def _after_step(self, event: events.Step) -> None:
        if not self.record.is_open():
            self.record.begin()
        elif self.engine is None and event.skips:
            self._filled()
            self.record.skip()
        elif self.engine is None and self.record.now.optimizer:
            self._keep(self._optimized(event.owner))
            self._untouched.discard(event.owner)

    def _before_engine(self, event: events.TrainerStep) -> None:
        """DeepSpeed's optimizers step by shards, some of them several times: so its engine's steps
        are recorded instead."""
        self._end_if_done()
        if self.record.is_open():
            self._look(self.engine)
        else:
            self.record.begin()

    def _after_engine(self, event: events.TrainerStep) -> None:
        if self.engine is None or not self.record.is_open():
            return
        if self.engine.overflowed():
            self.record.skip()
        else:
            self._keep(self.engine)

    def _look(self, updated: Any) -> None:
        """Record the state of the optimizer before its step."""
        self.averages.note()
        before = self._before = updated.weights()
        every = {**before, **updated.copies()}
        current = self.record.now
        if current.outside is None:  # a closure may have moved the weights since
            current.outside = self._outside(before)
        current.stale = updated.norm_of(self.record.left)
        current.grad = updated.gradients()
        current.lr = [float(group["lr"]) for group in updated.groups]
        current.optimizer = updated.kind
        current.number = self._numbers.setdefault(updated.owner, len(self._numbers))
        current.eps = updated.eps()
        current.largest = {n: float(w.abs().max()) if w.numel() else 0.0 for n, w in every.items()}
        current.group = settings.of_groups(updated.groups)
        current.clipping = updated.clipping()
        current.fresh = updated.fresh()
        current.starts = dict(self.model.names.starts)
        current.infinite = self.record.finite.place
        if not self.record.steps:
            root = self.model.root
            current.settings = settings.of_training(root, updated.groups, current)
        if len(self.record.steps) in self.assignment.keep:
            current.before, current.state = every, updated.state()

    def _outside(self, weights: Mapping[str, Any]) -> dict[str, float]:
        """By name, how far weights changed since the last step, as a part of their size."""
        pairs = ((n, w, self._left[n]) for n, w in weights.items() if n in self._left)
        return {
            name: part
            for name, now, left in pairs
            if now.shape == left.shape
            and (part := float((now - left).norm() / left.norm())) > OUTSIDE
        }

    def _keep(self, updated: Any) -> None:
        """Record how far the step moved the weights, and begin the next one."""
        after, current = updated.weights(), self.record.now
        self._left |= {n: w for n, w in after.items() if n in self.model.names.names.values()}
        current.update = {
            n: (after[n].double() - w.double()).to(w.dtype) for n, w in self._before.items()
        }
        repeats = len(set(map(tuple, current.rows))) < len(current.rows)  # as LBFGS does
        exact = not (current.scaled or current.coarse or current.stops or repeats)
        current.slopes = self.engine is None and exact
        if not self.record.steps:
            current.unlike = [*unlike_by_design(self.model.root), *objects_unlike_by_design()]
            current.shims = list(shims.uses)
            current.seeded = draws.is_seeded(int(os.environ.get("RANK", 0)))
            current.stage = self.model.stage
            if self.assignment.bugs and self.assignment.perturb is None:
                current.impossible = impossible_bugs(self.assignment.bugs, updated.kind)
        self.averages.note()
        if len(self.record.steps) + 1 == self.assignment.steps:
            current.copies = self.averages.record()
        current.evaluated = self.model.evaluates()
        self.record.keep()
        self.schedules.step()
        if not self.assignment.saves:
            self._end_if_done()
        elif not self.record.is_open():
            events.instrument.on(events.AsyncSave, before=self._note_late_save)

    def _note_late_save(self, event: events.AsyncSave) -> None:
        """An asynchronous save has begun: the step after it must not change the file."""
        self._saved_late = True

    def _end_if_done(self) -> None:
        if self.record.is_open() or self.assignment.epoch:
            return
        if self._saved_late:
            self._saved_late = False
        else:
            self.done()


def _releases() -> dict[str, str]:
    """The release of each module that this process has imported."""
    releases = {}
    for name in list(sys.modules):
        if "." not in name or name == "megatron.core":
            with suppress(Exception):  # some modules compute their attributes
                releases[name] = sys.modules[name].__version__
    return {name: version for name, version in releases.items() if type(version) is str}


def _loaded(cwd: str) -> list[str]:
    """The files of modules that belong to neither Python nor a package. One in the working folder,
    which may be a copy, has its path in it."""
    python = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    files = {file for file in _files() if file.endswith(".py") and os.path.isabs(file)}
    return [
        file.removeprefix(f"{cwd}{os.sep}")
        for file in sorted(map(os.path.normpath, files))
        if not file.startswith(python) and not any(part in file for part in PACKAGES)
    ]


def _files() -> list[str]:
    """The files of the modules of this process."""
    modules = list(sys.modules.values())
    return [str(getattr(module, "__file__", None) or "") for module in modules]
