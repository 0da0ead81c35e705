"""The kinds of events, and the calls that cause them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from .patches import Patches


class Place(NamedTuple):
    """A method of a class, or a function of a module."""

    module: str
    kind: str
    """The class; empty for a function."""
    name: str
    before: str = ""
    """The module that has the class in older releases."""

    def owner(self) -> Any:
        """The class or module; None if it is not imported."""
        module = sys.modules.get(self.module)
        if not self.kind:
            return module
        return getattr(module, self.kind, None) or getattr(
            sys.modules.get(self.before), self.kind, None
        )


@dataclass
class Event:
    """A call that torch, or a package that trains with it, makes or gets."""

    places: ClassVar[Sequence[Place]] = ()
    """What is called. What a package has is replaced only if the package is imported."""
    eager: ClassVar[bool] = False
    """Whether calls that torch.compile traces are no events."""
    everywhere: ClassVar[bool] = False
    """Whether functions are replaced also in modules that have imported them by name."""

    owner: Any
    """The object whose method is called; None for a function."""
    value: Any = field(default=None, init=False)
    """What the call returned, for handlers after it."""

    def occurs(self) -> bool:
        """Whether there is such an event. It is asked only if somebody listens: the answer may need
        the device."""
        return True

    @classmethod
    def source(cls) -> type[Event]:
        """The kind of events that has the same patches; usually this one."""
        return cls

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        """The event of a call with these arguments."""
        return cls(arguments[0] if place.kind else None)

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        """Make the handlers run at the calls of ``places``. ``of`` is the one object that somebody
        subscribes to, if it is one."""
        import torch  # noqa: F401

        for place in cls.places:
            owner = place.owner()
            if owner is None or not hasattr(owner, place.name):
                continue
            around = _running(cls, place, handlers)
            if cls.everywhere and not place.kind:
                patches.wrap_everywhere(getattr(owner, place.name), around, cls.eager)
            else:
                patches.wrap(owner, place.name, around, cls.eager)


class Handlers(Protocol):
    """Calls the handlers of events, as ``Instrument`` does."""

    def listens(self, kind: type[Event], owner: Any) -> bool: ...

    def before(self, event: Event) -> None: ...

    def after(self, event: Event) -> None: ...

    def run(self, event: Event, call: Callable[[], Any]) -> Any: ...


def _running(kind: type[Event], place: Place, handlers: Handlers) -> Any:
    def around(original: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if not handlers.listens(kind, arguments[0] if place.kind else None):
            return original(*arguments, **keywords)
        event = kind.of_call(place, arguments, keywords)
        return handlers.run(event, partial(original, *arguments, **keywords))

    return around


@dataclass
class Call(Event):
    """A call with its arguments."""

    arguments: Sequence[Any]
    """Without the owner."""
    keywords: Mapping[str, Any]

    @property
    def values(self) -> list[Any]:
        """All arguments."""
        return [*self.arguments, *self.keywords.values()]

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        owner, others = (arguments[0], arguments[1:]) if place.kind else (None, arguments)
        return cls(owner, others, keywords)


@dataclass
class NewOptimizer(Event):
    """An optimizer of torch is constructed."""

    places = (Place("torch.optim.optimizer", "Optimizer", "__init__"),)


@dataclass
class NewSchedule(Event):
    """A schedule of torch for the learning rate is constructed."""

    places = (
        Place("torch.optim.lr_scheduler", "LRScheduler", "__init__"),
        Place("torch.optim.lr_scheduler", "SequentialLR", "__init__"),  # it calls no other one
    )


@dataclass
class PreparedSchedule(Event):
    """accelerate wraps a schedule of torch, and steps it with the optimizer from now on."""

    places = (Place("accelerate.scheduler", "AcceleratedScheduler", "__init__"),)


@dataclass
class ModuleCall(Call):
    """A module is called; the owner is that module."""

    places = (Place("torch.nn", "Module", "__call__"),)
    eager = True


@dataclass
class Backward(Event):
    """``Tensor.backward`` is called; the owner is the tensor, such as the loss."""

    places = (Place("torch", "Tensor", "backward"),)

    gradient: Any
    """The gradient of the tensor, if the caller passes it, as a stage of a pipeline does."""

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        loss, *others = arguments
        return cls(loss, others[0] if others else keywords.get("gradient"))


@dataclass
class EngineBackward(Call):
    """DeepSpeed's engine, the owner, gets a loss to divide by the number of micro-batches."""

    places = (Place("deepspeed.runtime.engine", "DeepSpeedEngine", "backward"),)


@dataclass
class OutputGradient(Call):
    """A hook of DeepSpeed's engine gets the gradient of an output, and returns another one."""

    places = (
        Place("deepspeed.runtime.engine", "DeepSpeedEngine", "_backward_prologue_per_tensor"),
    )


@dataclass
class GraphBackward(Event):
    """``torch.autograd.backward`` is called, by ``Tensor.backward`` or by a stage of a pipeline.

    The owner is the tensor, or None if there are several."""

    places = (
        Place("torch.autograd", "", "backward"),
        Place("megatron.core.pipeline_parallel.schedules", "", "custom_backward"),
    )

    gradient: Any
    """The gradients of the tensors, if the caller passes them."""

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        import torch

        tensors = next(iter((*arguments, *keywords.values())), None)
        if isinstance(tensors, (list, tuple)) and len(tensors) == 1:  # it may be a generator
            (tensors,) = tensors
        others = arguments[1:2] or (keywords.get("grad_tensors"),)
        return cls(tensors if isinstance(tensors, torch.Tensor) else None, others[0])


@dataclass
class StageBackward(GraphBackward):
    """A stage of torch's zero-bubble pipelines computes a half of its backward: the gradients of
    its inputs, or those of its weights."""

    places = (
        Place("torch.distributed.pipelining._backward", "", "stage_backward_input"),
        Place("torch.distributed.pipelining._backward", "", "stage_backward_weight"),
    )
    everywhere = True


@dataclass
class StageGradients(Event):
    """The schedule of a pipeline of torch reduces the gradients of a stage, or divides them by the
    number of micro-batches, after the last backward."""

    places = (
        Place("torch.distributed.pipelining.stage", "_PipelineStageBase", "perform_reduce_grad"),
        Place("torch.distributed.pipelining.stage", "_PipelineStageBase", "scale_grads"),
    )


@dataclass
class Clip(Event):
    """``clip_grad_norm_`` is called. It returns the norm before the clipping."""

    parameters: Sequence[Any]
    max_norm: Any
    norm_type: float = 2.0

    @classmethod
    def function(cls) -> Any:
        """What is called; None if its package is not imported."""
        import torch

        return torch.nn.utils.clip_grad_norm_

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        import torch

        def around(
            original: Any, /, parameters: Any, max_norm: Any, *arguments: Any, **keywords: Any
        ) -> Any:
            if not handlers.listens(cls, None):
                return original(parameters, max_norm, *arguments, **keywords)
            single = isinstance(parameters, torch.Tensor)
            parameters = [parameters] if single else list(parameters)  # it may be a generator
            norm_type = arguments[0] if arguments else keywords.get("norm_type", 2.0)
            event = cls(None, parameters, max_norm, float(norm_type))
            return handlers.run(
                event, lambda: original(parameters, max_norm, *arguments, **keywords)
            )

        function = cls.function()
        if function is not None:
            patches.wrap_everywhere(function, around)


@dataclass
class EngineClip(Clip):
    """DeepSpeed's engine clips gradients in fp32 without ZeRO, by the norm of all ranks."""

    @classmethod
    def function(cls) -> Any:
        utils = sys.modules.get(f"{DEEPSPEED}.utils")
        function = getattr(utils, "clip_grad_norm_", None)
        own = getattr(function, "__module__", "") == f"{DEEPSPEED}.utils"
        return function if own else None  # some releases import torch's


SCALER = Place("torch.amp", "GradScaler", "", before="torch.cuda.amp")


@dataclass
class Unscale(Call):
    """A loss scaler divides the gradients by the scale, before a clipping or in its step. The
    first of its values is that optimizer."""

    places = (SCALER._replace(name="unscale_"),)


@dataclass
class ScalerStep(Call):
    """A loss scaler steps an optimizer, or skips its step if a gradient overflowed. A fused
    optimizer is always called: it divides by the scale, or skips, itself. The first of its values
    is the optimizer."""

    places = (SCALER._replace(name="step"),)


@dataclass
class Step(Event):
    """A step of an optimizer of torch."""

    closure: Any = None
    """Computes the gradients within the step, as with Lightning; None if they are ready."""

    @property
    def skips(self) -> bool:
        """Whether a fused optimizer changes nothing, because a gradient overflowed. Waits for the
        device, which knows it."""
        return _skips(self.owner)

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        patches.once(Step, lambda: _install_hooks(handlers))


TRAINERS = ("_take_model_step", "step_with_ready_grads", "step")
"""The methods that take a step: of DeepSpeed's engine, and of Megatron's optimizers."""


@dataclass
class TrainerStep(Event):
    """A step of DeepSpeed's engine, or of Megatron's optimizer around one of torch: their inner
    optimizers step by shards, or several times. Subscribe to it with ``of``."""

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        name = next(name for name in TRAINERS if hasattr(of, name))

        def around(original: Any, /, *arguments: Any, **keywords: Any) -> Any:
            return handlers.run(cls(of), lambda: original(*arguments, **keywords))

        patches.wrap(of, name, around)


DEEPSPEED = "deepspeed.runtime"
UNSCALE = "unscale_and_clip_grads"
MEGATRON, READY = "megatron.core.optimizer", "step_with_ready_grads"


@dataclass
class WrapperStep(Event):
    """A step of an optimizer of DeepSpeed or Megatron, that wraps one of torch: it makes that step
    by groups, or not at all, and distributes the weights afterwards. It is the owner."""

    places = (
        Place(f"{DEEPSPEED}.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", "step"),
        Place(f"{DEEPSPEED}.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", "step"),
        Place(f"{DEEPSPEED}.bf16_optimizer", "BF16_Optimizer", "step"),
        Place(f"{DEEPSPEED}.fp16.unfused_optimizer", "FP16_UnfusedOptimizer", "step"),
        Place(f"{DEEPSPEED}.fp16.fused_optimizer", "FP16_Optimizer", "step"),
        Place(f"{MEGATRON}.optimizer", "MixedPrecisionOptimizer", READY),
        Place(f"{MEGATRON}.distrib_optimizer", "DistributedOptimizer", READY),
    )


@dataclass
class WrapperUnscale(Event):
    """Such an optimizer divides the gradients of a group by the loss scale, and clips them."""

    places = (
        Place(f"{DEEPSPEED}.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", UNSCALE),
        Place(f"{DEEPSPEED}.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", UNSCALE),
    )


@dataclass
class Gradients(Event):
    """The gradients of an optimizer's step are ready: before the step, or after its closure. No
    such event precedes a step that a loss scaler skips."""

    in_closure: bool = False

    def occurs(self) -> bool:
        return self.in_closure or not _skips(self.owner)

    @classmethod
    def source(cls) -> type[Event]:
        return Step

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        Step.install(handlers, patches, of)


def _skips(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "found_inf", None))


def _install_hooks(handlers: Handlers) -> Any:
    """Register torch's hooks of all optimizers; returns a function that removes them."""
    from torch._compile import _disable_dynamo as uncompiled
    from torch.optim import optimizer as hooks

    # A compiled step would compile the handlers, too.
    @uncompiled
    def before(optimizer: Any, arguments: Any, keywords: Any) -> Any:
        closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
        if handlers.listens(Step, optimizer):
            handlers.before(Step(optimizer, closure))
        if closure is None:
            if handlers.listens(Gradients, optimizer):
                handlers.before(Gradients(optimizer))
            return None

        def evaluated() -> Any:
            value = closure()
            handlers.before(Gradients(optimizer, True))
            return value

        return (optimizer, evaluated), {}

    @uncompiled
    def after(optimizer: Any, arguments: Any, keywords: Any) -> None:
        if handlers.listens(Step, optimizer):
            handlers.after(Step(optimizer))

    handles = (
        hooks.register_optimizer_step_pre_hook(before),
        hooks.register_optimizer_step_post_hook(after),
    )

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


@dataclass
class Epoch(Event):
    """An iterator of a DataLoader is requested; the owner is the loader."""

    places = (Place("torch.utils.data", "DataLoader", "__iter__"),)


ITERATOR = Place("torch.utils.data.dataloader", "_BaseDataLoaderIter", "")


@dataclass
class NewIterator(Event):
    """An iterator of a DataLoader is constructed; the owner is the iterator."""

    places = (ITERATOR._replace(name="__init__"),)

    loader: Any

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(arguments[0], arguments[1] if len(arguments) > 1 else keywords["loader"])


FETCH = "torch.utils.data._utils.fetch"


@dataclass
class NewFetcher(Event):
    """What reads a dataset is constructed: in a worker of a loader, or in a process without one."""

    places = (Place(FETCH, "_BaseDatasetFetcher", "__init__"),)

    dataset: Any

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(arguments[0], arguments[1] if len(arguments) > 1 else keywords["dataset"])


@dataclass
class Fetch(Event):
    """A batch is read from a dataset."""

    places = (
        Place(FETCH, "_MapDatasetFetcher", "fetch"),
        Place(FETCH, "_IterableDatasetFetcher", "fetch"),
    )


@dataclass
class Batch(Event):
    """An iterator of a DataLoader is asked for a batch, or has none left."""

    ended: bool = False

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        def around(original: Any, /, iterator: Any) -> Any:
            try:
                return handlers.run(cls(iterator), lambda: original(iterator))
            except StopIteration:
                handlers.after(cls(iterator, ended=True))
                raise

        patches.wrap(ITERATOR.owner(), "__next__", around)


@dataclass
class Checkpoint(Call):
    """A checkpoint of a training, by torch or by a package."""

    place: Place
    """What is called."""

    @property
    def of_engine(self) -> bool:
        """Whether the training is that of DeepSpeed's engine."""
        return self.place.kind == "DeepSpeedEngine"

    def argument(self, number: int, name: str, default: Any = None) -> Any:
        """An argument, by its number or name."""
        if number < len(self.arguments):
            return self.arguments[number]
        return self.keywords.get(name, default)

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        owner, others = (arguments[0], arguments[1:]) if place.kind else (None, arguments)
        return cls(owner, others, keywords, place)


DISTRIBUTED = "torch.distributed.checkpoint"


@dataclass
class Save(Checkpoint):
    """A checkpoint is saved."""

    places: ClassVar[tuple[Place, ...]] = (
        Place("torch", "", "save"),
        Place(DISTRIBUTED, "", "save"),
        Place(DISTRIBUTED, "", "async_save"),
        Place("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint"),
    )
    everywhere = True

    @property
    def is_by_torch(self) -> bool:
        """Whether ``torch.save`` writes it, which writes any object."""
        return self.place.module == "torch"

    @property
    def is_distributed(self) -> bool:
        """Whether torch's distributed checkpoint is written."""
        return self.place.module == DISTRIBUTED

    @property
    def state(self) -> Any:
        """What torch saves."""
        return self.argument(0, "obj" if self.is_by_torch else "state_dict")

    @property
    def path(self) -> str:
        """Where it is saved, if the caller names a file or a folder; otherwise empty."""
        if self.of_engine:
            default = f"global_step{getattr(self.owner, 'global_steps', '')}"
            tag = self.argument(1, "tag") or default
            return path_of(os.path.join(str(self.argument(0, "save_dir")), str(tag)))
        if self.is_distributed:
            return distributed_path(self.keywords, "storage_writer")
        return path_of(self.argument(1, "f"))


PLANNERS = f"{DISTRIBUTED}.default_planner"


@dataclass
class PlannedSave(Save):
    """torch plans what it saves: this is seen also where a function has imported ``save`` before
    anything subscribed."""

    places = (Place(PLANNERS, "DefaultSavePlanner", "set_up_planner"),)

    @property
    def state(self) -> Any:
        """What torch saves."""
        return self.argument(0, "state_dict")

    @property
    def path(self) -> str:
        """Nothing: the planner does not know it."""
        return ""


@dataclass
class PlannedLoad(Event):
    """torch plans to fill a state that is there."""

    places = (Place(PLANNERS, "DefaultLoadPlanner", "set_up_planner"),)


@dataclass
class Load(Checkpoint):
    """A checkpoint is loaded."""

    places = (
        Place("deepspeed.runtime.engine", "DeepSpeedEngine", "load_checkpoint"),
        Place("accelerate.accelerator", "Accelerator", "load_state"),
        Place("transformers.trainer", "Trainer", "_load_optimizer_and_scheduler"),
    )

    @property
    def loaded(self) -> str:
        """The folder that DeepSpeed's engine has loaded; empty if it has loaded none."""
        file = self.value[0] if self.of_engine and isinstance(self.value, tuple) else None
        return path_of(os.path.dirname(file)) if isinstance(file, str) else ""

    @property
    def has_optimizer(self) -> bool:
        """Whether the engine was to load the optimizer's state, too."""
        is_asked = self.argument(3, "load_optimizer_states", True)
        return bool(is_asked) and not self.argument(5, "load_module_only", False)


@dataclass
class FilledState(Call):
    """A state that is there is filled with the values of a distributed checkpoint of torch."""

    places = (Place(DISTRIBUTED, "", "load"),)
    everywhere = True

    @property
    def state(self) -> Any:
        """What was filled."""
        return next(iter(self.arguments), self.keywords.get("state_dict"))

    @property
    def path(self) -> str:
        """The folder, if the caller names it; otherwise empty."""
        return distributed_path(self.keywords, "storage_reader")


def path_of(value: Any) -> str:
    """The real path of a file or folder; empty for anything else, such as a buffer."""
    is_path = isinstance(value, (str, os.PathLike))
    return os.path.realpath(os.fspath(value)) if is_path else ""


def distributed_path(keywords: Mapping[str, Any], storage: str) -> str:
    """The folder of a distributed checkpoint, by the arguments of its save or load."""
    path = path_of(keywords.get("checkpoint_id"))
    return path or path_of(getattr(keywords.get(storage), "path", None))


@dataclass
class MergedAdapter(Call):
    """PEFT merges adapters into the weight of their layer, which is the owner."""

    places = (
        Place("peft.tuners.lora.layer", "Linear", "merge"),
        Place("peft.tuners.lora.layer", "Embedding", "merge"),
        Place("peft.tuners.ia3.layer", "Linear", "merge"),
        Place("peft.tuners.boft.layer", "Linear", "merge"),
        Place("peft.tuners.oft.layer", "Linear", "merge"),
        Place("peft.tuners.hra.layer", "HRALinear", "merge"),
        Place("peft.tuners.fourierft.layer", "FourierFTLinear", "merge"),
        Place("peft.tuners.lycoris_utils", "LycorisLayer", "merge"),
    )

    @property
    def has_all(self) -> bool:
        """Whether the layer's active adapters are merged, and the caller names no others."""
        names = self.arguments[1] if len(self.arguments) > 1 else self.keywords.get("adapter_names")
        return names is None


@dataclass
class AsyncSave(Event):
    """A checkpoint begins to be saved, which goes on during the next steps."""

    places = (
        Place("torch.distributed.checkpoint.state_dict_saver", "", "async_save"),
        Place("lightning.pytorch.plugins.io.async_plugin", "AsyncCheckpointIO", "save_checkpoint"),
        Place("pytorch_lightning.plugins.io.async_plugin", "AsyncCheckpointIO", "save_checkpoint"),
    )
    everywhere = True


@dataclass
class Report(Call):
    """Numbers are reported to the user: they are among the arguments, or are what it returns."""

    places = (
        Place("transformers.trainer", "Trainer", "log"),
        Place("accelerate.accelerator", "Accelerator", "log"),
        Place("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar"),
        Place("lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
        Place("pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
    )


@dataclass
class Written(Event):
    """Something is written to TensorBoard: each method of a writer asks for its file first."""

    places = (
        Place("torch.utils.tensorboard.writer", "SummaryWriter", "_get_file_writer"),
        Place("tensorboardX.writer", "SummaryWriter", "_get_file_writer"),
    )


@dataclass
class LossValue(Call):
    """A loss function of torch is called, or the label smoothing of transformers' Trainer, which is
    the owner then. It returns the loss."""

    places = (
        Place("torch.nn.functional", "", "cross_entropy"),
        Place("torch.nn.functional", "", "nll_loss"),
        Place("torch.nn.functional", "", "mse_loss"),
        Place("torch.nn.functional", "", "binary_cross_entropy_with_logits"),
        Place("transformers.trainer_pt_utils", "LabelSmoother", "__call__"),
    )
    eager = True

    name: str = ""
    """Of the function."""

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        owner, others = (arguments[0], arguments[1:]) if place.kind else (None, arguments)
        return cls(owner, others, keywords, place.name)


@dataclass
class Gathered(Event):
    """Tensors of all ranks are gathered."""

    places = (Place("torch.distributed", "", "all_gather"),)
    eager = True


@dataclass
class Collective(Call):
    """The loop calls a collective on tensors."""

    places = tuple(
        Place("torch.distributed", "", name)
        for name in ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather")
    )
    eager = True
    everywhere = True


@dataclass
class ZeroGrad(Event):
    """An optimizer, or a module, clears the gradients of its parameters."""

    places = (
        Place("torch.optim.optimizer", "Optimizer", "zero_grad"),
        Place("torch.nn", "Module", "zero_grad"),
    )
    eager = True


@dataclass
class LoadedState(Event):
    """An optimizer loads a state."""

    places = (Place("torch.optim.optimizer", "Optimizer", "load_state_dict"),)


@dataclass
class NewScaler(Event):
    """A loss scaler is constructed."""

    places = (SCALER._replace(name="__init__"),)


@dataclass
class DrawnIndex(Event):
    """An iterator of a DataLoader draws the indices of a batch that it will return later."""

    places = (ITERATOR._replace(name="_next_index"),)


@dataclass
class NewCommunication(Event):
    """A DDP model gets another reduction of gradients than the mean in their own type."""

    places = (Place("torch.nn.parallel", "DistributedDataParallel", "register_comm_hook"),)

    hook: Any

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(arguments[0], arguments[2] if len(arguments) > 2 else keywords["hook"])
