"""Attaches detectors to whatever is trained in a rank: ``score`` asks what they find.

A detector is written for a training loop whose author calls it. Here hooks call it: the model is
the module that the process calls, its optimizer is the one that has its parameters, and a step is a
step of that optimizer or of DeepSpeed's engine. A detector with a method ``batch`` watches a
DataLoader of torch instead. A detector with ``judge`` writes a trace, which is judged after the
run. A detector learns nothing else: the folder has a neutral name, and ``sys.argv`` is empty.

If a process trains several models, such as upstream's and a reference, each model gets its own
detectors, and so does each loader.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.rank.watched import Attached, Reading, Training
from harness.system.files import write_whole

MOST = 4
"""How many trainings of a process are watched."""

MOST_LOADERS = 16
"""How many loaders of a process are watched."""

CHECKPOINTS = (
    ("torch", "", "save", ""),
    ("torch.distributed.checkpoint", "", "save", ""),
    ("torch.distributed.checkpoint", "", "async_save", ""),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", "load_checkpoint"),
    ("accelerate.accelerator", "Accelerator", "", "load_state"),
    ("transformers.trainer", "Trainer", "", "_load_optimizer_and_scheduler"),
)
"""Module, class, the function that saves a training, and the function that loads it."""


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
    attachment.begin(trial, f"{launch or 'only'}_{rank}")
    attachment.install()
    try:
        yield
    finally:
        attachment.close()
        sys.argv[1:] = arguments
        write_whole(file_of(trial, launch, rank), json.dumps(attachment.report()))


class Attachment:
    """The hooks in a rank, and the trainings and loaders that they found."""

    def __init__(self, requested: Sequence[Mapping[str, str]], keep: Path, rank: int) -> None:
        kinds = {one["name"]: kind_of(one) for one in requested}
        self._of_loaders = {n: k for n, k in kinds.items() if hasattr(k, "batch")}
        self._of_trainings = {n: k for n, k in kinds.items() if n not in self._of_loaders}
        self._tracing: dict[str, Any] = {}
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
        self._patched: set[str] = set()
        self._ended = self._busy = False

    def report(self) -> dict[str, Any]:
        """What was trained. If DeepSpeed's engine trains, models of plain torch are references."""
        engines = [training for training in self.trainings if training.is_engine]
        watched: list[Any] = [*(engines or self.trainings), *self.readings]
        return {"trainings": [each.describe() for each in watched]}

    def close(self) -> None:
        """The training is over."""
        self._ended = True
        for training in self.trainings:
            for detector in training.detectors:
                detector.call("close", training.steps)
        for reading in self.readings:
            reading.call("close")

    def begin(self, trial: Path, process: str) -> None:
        """Make the detectors that write a trace: one of each kind for the process."""
        for name, kind in self._of_trainings.items():
            if hasattr(kind, "judge"):
                folder = traces_of(trial, name) / process
                folder.mkdir(parents=True)
                self._tracing[name] = kind()
                self._tracing[name].record(folder)

    def install(self) -> None:
        """Put the hooks in place, before anything of the scenario runs."""
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        module.register_module_forward_pre_hook(self._called)
        optimizer.register_optimizer_step_post_hook(self._stepped)
        _after(torch.optim.Optimizer, "__init__", self._note_optimizer)
        _before(torch.utils.data.DataLoader, "__iter__", self._iterated)
        if self._of_loaders:
            self._watch_loaders(torch.utils.data.dataloader._BaseDataLoaderIter)

    # -- hooks --

    def _note_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        groups = optimizer.param_groups
        self._optimizers.append((optimizer, {id(p) for group in groups for p in group["params"]}))

    def _iterated(self, loader: Any) -> None:
        self._loader = loader

    def _watch_loaders(self, iterators: Any) -> None:
        original = iterators.__next__

        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            reading = next((r for i, r in self._iterators if i is iterator), None)
            try:
                batch = original(iterator)
            except StopIteration:
                if reading is not None and not self._ended:
                    reading.given(iterator, ())
                raise
            if reading is not None and not self._ended:
                reading.given(iterator, (batch,))
            return batch

        iterators.__next__ = next_batch
        _after(iterators, "__init__", self._made_iterator)

    def _made_iterator(self, iterator: Any, loader: Any, *_: Any) -> None:
        reading = next((one for one in self.readings if one.loader is loader), None)
        if reading is None and len(self.readings) < MOST_LOADERS:
            reading = Reading(loader, self._new(self._of_loaders, f"loader_{len(self.readings)}"))
            self.readings.append(reading)
            for detector in reading.detectors:
                detector.call("attach", 0, None, None, loader, group=_group(None))
                if detector.keep.exists():
                    detector.call("load", 0, detector.keep)
            self._watch_checkpoints()
        if reading is not None:
            self._iterators.append((iterator, reading))

    def _new(self, kinds: Mapping[str, Any], keep: str) -> list[Attached]:
        """A detector of each kind, or the one that traces this process."""
        return [
            Attached(
                name,
                self._tracing[name] if name in self._tracing else kind(),
                self._keep / f"{keep}_{name.replace('/', '_')}",
            )
            for name, kind in kinds.items()
        ]

    def _called(self, module: Any, _: Any) -> None:
        """Runs before each call of a module. Attaches to a module that is called in training."""
        import torch

        if id(module) in self._inside or self._ended or not torch.is_grad_enabled():
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        engine = _engine(module)
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
        if is_engine:
            _after(model, "_take_model_step", lambda *_, **__: training.step())
        elif (wrapper := _wrapper(optimizer)) is not None:
            training.wrapped = True
            name = "step_with_ready_grads" if hasattr(wrapper, "step_with_ready_grads") else "step"
            _after(wrapper, name, lambda *_, **__: training.step())
        self._watch_checkpoints()
        for detector in detectors:
            detector.call("attach", 0, model, optimizer, self._loader, group=_group(model))
            if detector.keep.exists():  # this launch goes on with what another one has saved
                detector.call("load", 0, detector.keep)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        for training in self.trainings:
            if training.optimizer is optimizer and not (training.is_engine or training.wrapped):
                training.step()

    def _watch_checkpoints(self) -> None:
        for module, kind, save, load in CHECKPOINTS:
            owner: Any = sys.modules.get(module)
            owner = getattr(owner, kind, None) if kind else owner
            for name, method in ((save, "save"), (load, "load")):
                if name and hasattr(owner, name) and f"{module}.{name}" not in self._patched:
                    self._patched.add(f"{module}.{name}")
                    of_engine = kind == "DeepSpeedEngine"
                    hook = functools.partial(self._checkpoint, method, of_engine)
                    (_before if method == "save" else _after)(owner, name, hook)

    def _checkpoint(self, method: str, of_engine: bool, *_: Any, **__: Any) -> None:
        if self._busy or self._ended:  # a detector may save what it needs
            return
        # An engine's checkpoint is its own.
        of = [(one.steps, one.detectors) for one in self.trainings if one.is_engine == of_engine]
        of += [(one.epochs, one.detectors) for one in self.readings]
        for steps, detectors in of:
            for detector in detectors:
                if method == "save":
                    detector.keep.mkdir(parents=True, exist_ok=True)
                if detector.keep.exists():
                    self._busy = True
                    detector.call(method, steps, detector.keep)
                    self._busy = False


def kind_of(detector: Mapping[str, str]) -> Callable[[], Any]:
    """The class of a detector, imported."""
    if detector["root"] and detector["root"] not in sys.path:
        sys.path.insert(0, detector["root"])
    kind: Callable[[], Any] = getattr(importlib.import_module(detector["module"]), detector["kind"])
    return kind


def _engine(module: Any) -> Any:
    """DeepSpeed's engine, if it is this module or calls this module; otherwise None."""
    frame: Any = sys._getframe(1)
    caller = module
    while frame is not None:
        if any(kind.__name__ == "DeepSpeedEngine" for kind in type(caller).__mro__) and (
            caller is module or getattr(caller, "module", None) is module
        ):
            return caller
        caller, frame = frame.f_locals.get("self"), frame.f_back
    return None


def _wrapper(optimizer: Any) -> Any:
    """Megatron's optimizer that wraps this one and distributes the weights after its step."""
    if "megatron.core.optimizer" not in sys.modules:
        return None
    for candidate in gc.get_objects():
        megatron = str(type(candidate).__module__).startswith("megatron.core.")
        if megatron and getattr(candidate, "optimizer", None) is optimizer:
            return candidate
    return None


def _group(model: Any) -> Any:
    """The group that a user would pass: the data-parallel ranks, if there are other groups."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        return model.process_group
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        return state.get_data_parallel_group()
    if hasattr(getattr(model, "module", None), "tied_comms"):  # DeepSpeed's pipeline
        return model.data_parallel_group
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _after(owner: Any, name: str, hook: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        value = original(*arguments, **keywords)
        hook(*arguments, **keywords)
        return value

    setattr(owner, name, wrapped)


def _before(owner: Any, name: str, hook: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        hook(*arguments, **keywords)
        return original(*arguments, **keywords)

    setattr(owner, name, wrapped)
