"""Attaches detectors to whatever is trained in a rank: ``score`` asks what they find.

A detector is written for a training loop whose author calls it. Here events call it: the model is
the module that the process calls, its optimizer is the one that has its parameters, and a step is a
step of that optimizer or of DeepSpeed's engine. A detector with a method ``batch`` watches a
DataLoader of torch instead. A detector with ``judge`` writes a trace, which is judged after the
run. A detector learns nothing else: the folder has a neutral name, and ``sys.argv`` is empty.

If a process trains several models, such as upstream's and a reference, each model gets its own
detectors, and so does each loader.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.rank import events
from harness.rank.watched import Attached, Reading, Training
from harness.system.files import write_whole

MOST = 4
"""How many trainings of a process are watched."""

MOST_LOADERS = 16
"""How many loaders of a process are watched."""


def file_of(trial: Path, launch: str, rank: int) -> Path:
    """Where a rank writes what its detectors reported."""
    return trial / f"detectors{launch and '_' + launch}_{rank}.json"


def traces_of(trial: Path, name: str) -> Path:
    """The folder with the traces that a detector wrote in a trial, one folder for each process."""
    return trial / f"traces_{name.replace('/', '_')}"


@contextmanager
def attached(
    requested: Sequence[Mapping[str, str]], trial: Path, launch: str, rank: int
) -> Iterator[None]:
    """Attach these detectors to what is trained in the context, and write what they report."""
    if not requested:
        yield
        return
    arguments = sys.argv[1:]
    del sys.argv[1:]  # they name the variant
    attachment = Attachment(requested, trial / f"kept_{rank}", rank)
    try:
        attachment.begin(trial, f"{launch or 'only'}_{rank}")
        attachment.install()
        yield
    finally:
        sys.argv[1:] = arguments
        attachment.close()
        write_whole(file_of(trial, launch, rank), json.dumps(attachment.report()))


class Attachment:
    """Turns the events of a rank into calls of detectors. Finds the trainings and the loaders."""

    def __init__(self, requested: Sequence[Mapping[str, str]], keep: Path, rank: int) -> None:
        kinds = {one["name"]: kind_of(one) for one in requested}
        self._of_loaders = {n: k for n, k in kinds.items() if hasattr(k, "batch")}
        self._of_trainings = {n: k for n, k in kinds.items() if n not in self._of_loaders}
        self._tracing: dict[str, Attached] = {}
        self._keep, self._rank = keep, rank
        self.trainings: list[Training] = []
        self.readings: list[Reading] = []
        self._iterators: list[tuple[Any, Reading]] = []
        self._optimizers: list[tuple[Any, set[int]]] = []
        """All optimizers, each with the ids of the parameters that it got at first."""
        self._inside: set[int] = set()
        """The ids of all watched modules and of their parts."""
        self._known: list[Any] = []
        """Keeps watched modules alive, so that no new module gets an old id."""
        self._loader: Any = None
        self._subscriptions: list[events.Subscription[Any]] = []
        self._busy = False

    def report(self) -> dict[str, Any]:
        """What was trained. If DeepSpeed's engine trains, models of plain torch are references."""
        engines = [training for training in self.trainings if training.is_engine]
        watched: list[Any] = [*(engines or self.trainings), *self.readings]
        return {"trainings": [each.describe() for each in watched]}

    def close(self) -> None:
        """The training is over."""
        for subscription in self._subscriptions:
            subscription.end()
        for training in self.trainings:
            for detector in training.detectors:
                detector.call("close", training.steps)
        for reading in self.readings:
            reading.call("close")
        for tracing in () if self.trainings else self._tracing.values():
            tracing.call("close", 0)  # it has found its trainings itself
            if tracing.error:
                print(tracing.error, file=sys.stderr)

    def begin(self, trial: Path, process: str) -> None:
        """Make the detectors that write a trace: one of each kind for the process."""
        for name, kind in self._of_trainings.items():
            if hasattr(kind, "judge"):
                folder = traces_of(trial, name) / process
                folder.mkdir(parents=True)
                self._tracing[name] = Attached(name, kind(), self._keep)
                self._tracing[name].call("record", 0, folder)

    def install(self) -> None:
        """Subscribe to the events, before anything of the scenario runs."""
        self._on(events.NewOptimizer, after=self._note_optimizer)
        self._on(events.Epoch, before=self._note_loader)
        self._on(events.ModuleCall, before=self._called)
        if self._of_loaders:
            self._on(events.NewIterator, after=self._begin_epoch)
            self._on(events.Batch, after=self._read)

    def _on(self, kind: type[events.Event], **handlers: Any) -> None:
        self._subscriptions.append(events.instrument.on(kind, **handlers))

    # -- handlers --

    def _note_optimizer(self, event: events.NewOptimizer) -> None:
        groups = event.owner.param_groups
        ids = {id(p) for group in groups for p in group["params"]}
        self._optimizers.append((event.owner, ids))

    def _note_loader(self, event: events.Epoch) -> None:
        self._loader = event.owner

    def _read(self, event: events.Batch) -> None:
        for iterator, reading in self._iterators:
            if iterator is event.owner:
                reading.note(iterator, () if event.ended else (event.value,))
                return

    def _begin_epoch(self, event: events.NewIterator) -> None:
        loader = event.loader
        reading = next((one for one in self.readings if one.loader is loader), None)
        if reading is None and len(self.readings) < MOST_LOADERS:
            reading = Reading(loader, self._new(self._of_loaders, f"loader_{len(self.readings)}"))
            self.readings.append(reading)
            self._begin(reading.detectors, None, None, loader)
        if reading is not None:
            self._iterators.append((event.owner, reading))

    def _begin(
        self, detectors: Sequence[Attached], model: Any, optimizer: Any, loader: Any
    ) -> None:
        """Attach detectors to a training or a loader."""
        if any(one.kind is events.Save for one in self._subscriptions):
            events.instrument.refresh()
        else:
            self._on(events.Save, before=self._save)
            self._on(events.Load, after=self._load)
        for detector in detectors:
            detector.call("attach", 0, model, optimizer, loader, group=_group(model))
            if detector.keep.exists():  # this launch goes on with what another one has saved
                detector.call("load", 0, detector.keep)

    def _new(self, kinds: Mapping[str, Any], keep: str) -> list[Attached]:
        """A detector of each kind, or the one that traces this process."""
        detectors = []
        for name, kind in kinds.items():
            place = self._keep / f"{keep}_{name.replace('/', '_')}"
            tracing = self._tracing.get(name) or Attached(name, kind(), place)
            detectors.append(replace(tracing, keep=place, alarms=[]))
        return detectors

    def _called(self, event: events.ModuleCall) -> None:
        """Attach to a module that is called in training."""
        import torch

        module = event.owner
        if id(module) in self._inside or not torch.is_grad_enabled():
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        engine = events.engine_of(module)
        optimizer = engine.optimizer if engine is not None else self._optimizer_of(module)
        if optimizer is None:
            return  # perhaps it is made later
        self._inside |= {id(one) for one in module.modules()}
        self._known.append(module)
        if len(self.trainings) < MOST:
            self._attach(engine if engine is not None else module, optimizer, engine is not None)

    def _optimizer_of(self, module: Any) -> Any:
        """The newest optimizer that has parameters of a module, or None."""
        ids = {id(p) for p in module.parameters()}
        for optimizer, initial in reversed(self._optimizers):
            current = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if ids & (initial | current):  # wrappers such as FSDP2 replace the parameters of both
                return optimizer
        return None

    def _attach(self, model: Any, optimizer: Any, is_engine: bool) -> None:
        detectors = self._new(self._of_trainings, str(len(self.trainings)))
        training = Training(model, optimizer, detectors, is_engine)
        self.trainings.append(training)
        trainer = model if is_engine else events.wrapper_of(optimizer)
        kind: type[events.Event] = events.Step if trainer is None else events.TrainerStep
        of = optimizer if trainer is None else trainer
        self._on(kind, of=of, after=lambda event: training.step())
        self._begin(detectors, model, optimizer, self._loader)

    def _save(self, event: events.Save) -> None:
        for step, detector in self._concerned(event):
            detector.keep.mkdir(parents=True, exist_ok=True)
            detector.call("save", step, detector.keep)

    def _load(self, event: events.Load) -> None:
        for step, detector in self._concerned(event):
            if detector.keep.exists():
                detector.call("load", step, detector.keep)

    def _concerned(self, event: events.Checkpoint) -> Iterator[tuple[int, Attached]]:
        """The detectors that a checkpoint concerns, with their steps: an engine's is its own."""
        if self._busy:  # a detector may save what it needs
            return
        trainings = [one for one in self.trainings if one.is_engine == event.of_engine]
        self._busy = True
        try:
            for training in trainings:
                yield from ((training.steps, detector) for detector in training.detectors)
            for reading in self.readings:
                yield from ((reading.epochs, detector) for detector in reading.detectors)
        finally:
            self._busy = False


def kind_of(detector: Mapping[str, str]) -> Callable[[], Any]:
    """The class of a detector, imported."""
    if detector["root"] and detector["root"] not in sys.path:
        sys.path.insert(0, detector["root"])
    kind: Callable[[], Any] = getattr(importlib.import_module(detector["module"]), detector["kind"])
    return kind


def _group(model: Any) -> Any:
    """The group that a user would pass: the data-parallel ranks, if there are other groups."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from harness.rank.training.deepspeed import is_pipeline

    if isinstance(model, DistributedDataParallel):
        return model.process_group
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        return state.get_data_parallel_group()
    if is_pipeline(model):
        return model.data_parallel_group
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
