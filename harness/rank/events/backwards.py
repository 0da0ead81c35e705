"""Events from the forward to the gradients: calls of modules, losses, backwards, collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .event import Call, Event, Place


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
    everywhere = True


@dataclass
class Collective(Call):
    """A collective is called on tensors."""

    places = tuple(
        Place("torch.distributed", "", name)
        for name in (
            "all_reduce",
            "all_reduce_coalesced",
            "broadcast",
            "reduce",
            "all_gather",
            "all_gather_into_tensor",
            "reduce_scatter",
            "reduce_scatter_tensor",
        )
    )
    eager = True
    everywhere = True

    name: str = ""
    """Of the function."""

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(None, arguments, keywords, place.name)


@dataclass
class Joined(Event):
    """A context ends in which ranks may have unlike numbers of batches."""

    places = (Place("torch.distributed.algorithms.join", "Join", "__exit__"),)


@dataclass
class NewCommunication(Event):
    """A DDP model gets another reduction of gradients than the mean in their own type."""

    places = (Place("torch.nn.parallel", "DistributedDataParallel", "register_comm_hook"),)

    hook: Any

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(arguments[0], arguments[2] if len(arguments) > 2 else keywords["hook"])
