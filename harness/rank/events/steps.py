"""Events of an optimizer's step, and of all that belongs to it: schedules, scalers, clipping."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .event import Call, Event, Handlers, Place
from .patches import Patches


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
class Clip(Event):
    """``clip_grad_norm_`` is called. It returns the norm before the clipping."""

    limit: ClassVar[str] = "max_norm"
    """The name of the function's second parameter."""
    has_norm_type: ClassVar[bool] = True
    """Whether its third one is the order of the norm."""

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

        def around(original: Any, /, parameters: Any, *arguments: Any, **keywords: Any) -> Any:
            if not handlers.listens(cls, None):
                return original(parameters, *arguments, **keywords)
            single = isinstance(parameters, torch.Tensor)
            parameters = [parameters] if single else list(parameters)  # it may be a generator
            limit, *others = arguments or (keywords.get(cls.limit),)
            event = cls(None, parameters, limit)
            if cls.has_norm_type:
                norm_type = keywords.get("norm_type", others[0] if others else 2.0)
                event.norm_type = float(norm_type or 0)
            return handlers.run(event, lambda: original(parameters, *arguments, **keywords))

        function = cls.function()
        if function is not None:
            patches.wrap_everywhere(function, around)


@dataclass
class ValueClip(Clip):
    """``clip_grad_value_`` is called. ``max_norm`` is its limit for a value."""

    limit, has_norm_type = "clip_value", False

    @classmethod
    def function(cls) -> Any:
        import torch

        return torch.nn.utils.clip_grad_value_


@dataclass
class NormedClip(Clip):
    """``clip_grads_with_norm_`` is called: by a loop that has computed the norm, or within a
    ``Clip``."""

    has_norm_type = False

    @classmethod
    def function(cls) -> Any:
        import torch

        return getattr(torch.nn.utils, "clip_grads_with_norm_", None)


@dataclass
class EngineClip(Clip):
    """DeepSpeed's engine clips gradients in fp32 without ZeRO, by the norm of all ranks."""

    @classmethod
    def function(cls) -> Any:
        utils = sys.modules.get(f"{DEEPSPEED}.utils")
        function = getattr(utils, "clip_grad_norm_", None)
        is_deepspeeds = getattr(function, "__module__", "") == f"{DEEPSPEED}.utils"
        return function if is_deepspeeds else None  # some releases import torch's


SCALER = Place("torch.amp", "GradScaler", "")


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


MEGATRON = "megatron.core.optimizer"


READY = "step_with_ready_grads"


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
class ZeroGrad(Event):
    """An optimizer, or a module, clears the gradients of its parameters."""

    places = (
        Place("torch.optim.optimizer", "Optimizer", "zero_grad"),
        Place("torch.nn", "Module", "zero_grad"),
    )
    eager = True


@dataclass
class NewScaler(Event):
    """A loss scaler is constructed."""

    places = (SCALER._replace(name="__init__"),)
