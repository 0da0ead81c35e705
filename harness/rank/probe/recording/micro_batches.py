"""The model that a script trains, and its calls: each is a micro-batch, or a part of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import is_dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from harness.detectors.arithmetic import Projection
from harness.detectors.rows import leaves
from harness.rank import events
from harness.rank.cuda_on_cpu.mode import without_mode
from harness.rank.probe.exchange import Step
from harness.rank.probe.recording import losses
from harness.rank.probe.recording.draws import Draws
from harness.rank.probe.recording.noise import Noise
from harness.rank.probe.recording.parameters import NamedParameters, full, reshard
from harness.rank.probe.recording.record import Record
from harness.rank.probe.recording.samples import (
    Returned,
    bound,
    is_transformed,
    rows,
    rows_dimension,
)
from harness.rank.probe.settings import drops
from harness.rank.training.layouts import WRAPPERS, is_compiled
from harness.rank.training.stages import rehearses, stage_number

PARTS_UP_TO = 2_000_000
"""Up to this number of parameters, each micro-batch's own gradient is kept."""


class MicroBatches:
    """Finds the model, which is the first module with parameters that no other module calls, in a
    training step. Records what each of its calls gets and returns.

    ``meet`` is called once the model is known.
    """

    def __init__(
        self,
        record: Record,
        noise: Noise,
        meet: Callable[[], None],
        keeps_batch: bool,
        row_count: int = 0,
    ) -> None:
        self._record, self._noise, self._meet = record, noise, meet
        self._keeps_batch, self._row_count = keeps_batch, row_count
        self.rows_dimension = 0
        """Of a batch, the dimension that has its rows."""
        self._draws = Draws(record)
        self.root: Any = None
        """The model; None before its first call."""
        self.stage: int | None = None
        """Which stage of a pipeline the model is, from 0."""
        self.engine: Any = None
        """DeepSpeed's engine of the model, if it has one."""
        self.names = NamedParameters()
        self.batch: Mapping[str, Any] = {}
        """The model's first inputs, by argument, if they are to be kept."""
        self.on_evaluation: Callable[[Any], None] = lambda _: None
        """Is called with each outermost module that has weights and is called without training."""
        self._depth = 0
        self._weighs = False
        """Whether the outermost module that is called has weights. Transforms of data have none:
        rows must stay as they are."""
        self._returned = Returned()
        self._hooked: set[int] = set()
        """The ids of the parameters whose gradients are recorded for each micro-batch."""
        self._evaluated: set[int] = set()
        """The ids of the modules that were called without training."""
        self._quiet: set[str] = set()
        """The rows on which the model ran without gradients before the first step."""

    def install(self, dropout: bool = False) -> None:
        """Subscribe, before anything of the script runs, and switch dropout off, if it is not to
        stay on."""
        if not dropout:
            self._draws.install()
        events.instrument.on(events.ModuleCall, around=self._called)

    def parameters(self) -> Iterable[Any]:
        return self.root.parameters() if self.root is not None else ()

    def evaluates(self) -> bool:
        """Whether the model or a part of it was called without training."""
        parts = map(id, self.root.modules()) if self.root is not None else ()
        return not self._evaluated.isdisjoint(parts)

    def _called(self, event: events.ModuleCall, call: Callable[[], Any]) -> Any:
        module, record = event.owner, self._record
        with self._call([module]) as outermost:
            is_batch, step, learns = False, record.now, torch.is_grad_enabled()
            if outermost and learns and _trains(module) and not rehearses(module):
                is_batch = self._begin(module, event.arguments, event.keywords)
            elif outermost:
                self._evaluated.add(id(module))
                if self._weighs:
                    self.on_evaluation(module)
                if not record.steps and self._weighs:
                    batch = bound(module, event.arguments, event.keywords)
                    self._quiet |= set(rows(*batch, dimension=self.rows_dimension))
            # the model, or the loss of its output
            watched = outermost and record.is_open() and bool(record.now.rows) and learns
            if is_transformed():
                return call()
            output = self._output(call, watched, is_compiled(module))
        self._look(module, event.keywords, output)
        is_leaf = next(module.children(), None) is None
        needs_gradient = getattr(output, "requires_grad", False)
        if self._noise.is_random and is_leaf and (self._weighs or needs_gradient):
            output = self._noise.nudged(output)
        if is_batch:
            _note_use(module, output, step)
        elif outermost and self.root is not None and _inner(module) is _inner(self.root):
            _on_gradient(output, partial(step.modes.update, training_modes(module)))
        if outermost and _trains(module) and any(p.requires_grad for p in module.parameters()):
            self._returned.add(value for _, value in leaves(output, is_dataclass))
        return output

    def around_compiled(
        self, modules: Sequence[Any], call: Any, arguments: Sequence[Any], keywords: Any
    ) -> Any:
        """Call a compiled function: the first of its modules that trains is the model."""
        record = self._record
        with self._call(modules) as outermost:
            is_batch, step = False, record.now
            taught = len(step.losses)
            if outermost and torch.is_grad_enabled():
                trained = (each for each in modules if _trains(each) and _has_weights(each))
                for module in islice(trained, 1):
                    is_batch = self._begin(module, arguments, keywords)
            output = self._output(call, is_batch, is_compiled=True)
        # a function may also make the backward, or the step, itself
        if is_batch and record.now is step and len(step.losses) == taught:
            _note_use(self.root, output, step)
        return output

    @contextmanager
    def _call(self, modules: Sequence[Any]) -> Iterator[bool]:
        """A call that uses these modules; whether it is the outermost one."""
        outermost, self._depth = not self._depth, self._depth + 1
        try:
            self._weighs = any(map(_has_weights, modules)) if outermost else self._weighs
            yield outermost
        finally:
            self._depth -= 1

    def _output(self, call: Callable[[], Any], watched: bool, is_compiled: bool) -> Any:
        """What a call returns. Of a watched one, the random numbers are noted."""
        if watched:
            self._draws.begin()
        with without_mode() if is_compiled else nullcontext():
            output = call()
        if watched:
            self._draws.end()
        return output

    def _look(self, module: Any, keywords: Mapping[str, Any], output: Any) -> None:
        """Record what is seen of a module's output, and of its gradient."""
        record = self._record
        if not record.steps and torch.is_grad_enabled():
            record.finite.look(self.root, module, output)
        if getattr(output, "dtype", None) in (torch.bfloat16, torch.float16):
            record.now.coarse = max(record.now.coarse, torch.finfo(output.dtype).eps)
        if losses.LABELS in keywords and not self._noise.is_random and record.now.own is None:
            losses.follow(output, keywords, self._note_share)
            record.now.endless = losses.ends_masked(keywords)

    def _note_share(self, share: Projection, shifted: bool) -> None:
        step = self._record.now
        step.own = step.own or share.ratio
        step.shifted = shifted

    def _begin(self, module: Any, arguments: Any, keywords: Any) -> bool:
        """Note that the model, or another stage of it, gets a micro-batch. Returns whether its rows
        were recorded."""
        record = self._record
        if not _has_weights(module):
            return False
        if self.root is None and not any(p.requires_grad for p in module.parameters()):
            return False  # a teacher, or a frozen encoder, that is called before the model
        # Many constructors call a part of the model once, to learn the size of what it returns.
        untrained = not (record.steps or record.now.parts) and module is not self.root
        if self.root is None or (untrained and any(p is self.root for p in module.modules())):
            self._take(module, arguments, keywords)
        is_model = _inner(module) is _inner(self.root)
        if is_model:
            batch = bound(module, arguments, keywords)
            digests = rows(*batch, self._returned, self.rows_dimension)
            record.seen[-1] += digests
            record.now.stops |= bool(digests) and self._quiet.issuperset(digests)
            if record.is_open():
                record.now.rows.append(digests)
        if record.is_open() and not is_transformed():  # else it has other parameters now
            self._know(module)
        return is_model and record.is_open()

    def _take(self, module: Any, arguments: Any, keywords: Any) -> None:
        """Take a module for the model, and forget what was taken for it before."""
        if self.root is not None:
            self.names.forget()
            self._record.forget()
            self.__dict__.pop("_is_small", None)
        self.root, self.stage = module, stage_number(module)
        self.engine = events.engine_of(module)
        batch = bound(module, arguments, keywords)
        self.rows_dimension = rows_dimension(*batch, self._row_count, self._returned)
        if self._keeps_batch:
            self.batch = dict(batch[1])
        self._meet()

    def _know(self, module: Any) -> None:
        """Learn the parameters of the model or of another stage, and move those of a new one."""
        if new := module not in self.names:
            reshard(module)
        for name, parameter in self.names.learn(module):
            if new:
                self._noise.move(name, parameter)
            if id(parameter) in self._hooked or not parameter.requires_grad:
                continue
            if self._is_small and self.engine is None and not hasattr(parameter, "full_tensor"):
                self._hooked.add(id(parameter))
                parameter.register_hook(functools.partial(self._part, id(parameter)))

    @functools.cached_property
    def _is_small(self) -> bool:
        return sum(parameter.numel() for parameter in self.parameters()) <= PARTS_UP_TO

    def _part(self, parameter: int, gradient: Any) -> None:
        """Record the gradient of one backward on this rank, before any reduction. The parameter is
        known by its id."""
        parts, name = self._record.now.parts, self.names.names[parameter]
        if parts and self._record.is_open():
            part = parts[-1]
            part[name] = part[name] + full(gradient) if name in part else full(gradient)


def _note_use(module: Any, output: Any, step: Step) -> None:
    """Count the last micro-batch as unused until an output of the model gets a gradient: a call
    before the loop may only initialise lazy modules."""
    number, mode = len(step.rows) - 1, training_modes(module)

    def note() -> None:
        step.unused.discard(number)
        step.modes |= mode

    step.unused |= {number} if _on_gradient(output, note) else set()


def _on_gradient(output: Any, note: Callable[[], None]) -> bool:
    """Call a function when an output of the model gets a gradient; whether any can get one."""
    values = [value for _, value in leaves(output, is_dataclass)]
    outputs = [each for each in values if isinstance(each, torch.Tensor) and each.requires_grad]
    for tensor in outputs:
        tensor.register_hook(lambda gradient: note())
    return bool(outputs)


def training_modes(module: Any) -> set[bool]:
    """Whether what depends on the training mode, dropout and batch norms, is in that mode; empty if
    a module has none."""
    from torch.nn.modules.batchnorm import _BatchNorm  # FrozenBatchNorm2d is none

    parts = [
        part
        for part in module.modules()
        if drops(part) or (isinstance(part, _BatchNorm) and part.running_mean is not None)
    ]
    return {any(part.training for part in parts)} if parts else set()


def _inner(module: Any) -> Any:
    """The module in wrappers such as DDP, which a script may replace while it trains."""
    children = dict(module.named_children())
    if len(children) == 1 and (inside := next(iter(children))) in WRAPPERS:
        return _inner(children[inside])
    return module


def _trains(module: Any) -> bool:
    """Whether a module or a part of it is in training mode: after a validation, Lightning leaves
    the DDP wrapper in evaluation mode."""
    return any(each.training for each in module.modules())


def _has_weights(module: Any) -> bool:
    return next(module.parameters(), None) is not None
