"""Faults of a training that an engine runs, such as DeepSpeed. Each function is called in a rank
before the script."""

from __future__ import annotations

import gc
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

FAULT_STEP = 6
Change = Callable[[Any], None]


def begin(fault: str, rank: int) -> None:
    """Prepare a rank for a script; with a fault, unless the word is empty."""
    # On CPUs with several ranks the Trainer loads tensors to ``cpu:0``, which torch does not know.
    torch.serialization.register_package(
        0, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    if fault:
        globals()[fault](rank)


def flipped(rank: int) -> None:
    """At a step one bit of one weight of rank 1 flips."""
    steps = 0

    def flip(optimizer: Any, *_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == FAULT_STEP and rank == 1:
            parameter = _model_parameters()[0]
            kind = torch.int16 if parameter.element_size() == 2 else torch.int32
            with torch.no_grad():
                parameter.detach().view(kind).view(-1)[3] ^= 1

    optimizers.register_optimizer_step_post_hook(flip)


def _model_parameters() -> list[Any]:
    names = ("DeepSpeedEngine", "PipelineEngine", "DistributedDataParallel")
    wrappers = [one for one in gc.get_objects() if type(one).__name__ in names]
    return list(wrappers[0].parameters())


def _change_backward(change: Callable[[int, Any], Any], after: Callable[[int], None]) -> None:
    """Change the loss of each backward by its number, and call a function after it."""
    original, calls = torch.Tensor.backward, itertools.count(1)

    def backward(loss: Any, *arguments: Any, **keywords: Any) -> Any:
        number = next(calls)
        value = original(change(number, loss), *arguments, **keywords)
        after(number)
        return value

    torch.Tensor.backward = backward  # type: ignore[assignment, method-assign]


def halved(rank: int) -> None:
    """The loss of each micro-batch is divided by 2 once more."""
    _change_backward(lambda number, loss: loss / 2, lambda number: None)


def nan(rank: int) -> None:
    """At a backward the loss of rank 1 is nan."""

    def lose(number: int, loss: Any) -> Any:
        return loss * torch.nan if number == FAULT_STEP and rank == 1 else loss

    _change_backward(lose, lambda number: None)


def infinite(rank: int) -> None:
    """From the third backward on a gradient is infinite, although the loss is finite."""

    def fill(number: int) -> None:
        if number >= 3:
            _model_parameters()[0].grad.fill_(torch.inf)

    _change_backward(lambda number, loss: loss, fill)


class Comm:
    """deepspeed.comm with other functions."""

    def __init__(self, **functions: Any) -> None:
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("deepspeed.comm"), name)


def unreduced_by_deepspeed(rank: int) -> None:
    """DeepSpeed's reductions leave out what other ranks have."""
    import deepspeed.comm as comm  # type: ignore[import-not-found]
    from deepspeed.runtime import engine  # type: ignore[import-not-found]
    from deepspeed.runtime.zero import stage3, stage_1_and_2  # type: ignore[import-not-found]

    def all_reduce(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        if tensor.numel() > 8:  # a norm is no gradient
            return tensor.mul_(dist.get_world_size())
        return comm.all_reduce(tensor, *arguments, **keywords)

    engine.dist = stage_1_and_2.dist = Comm(all_reduce=all_reduce, reduce=all_reduce)
    original = stage3.reduce_scatter_coalesced

    def reduce_scatter(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        parts = original([torch.zeros_like(t) for t in tensors], *arguments, **keywords)
        world = dist.get_world_size()
        for tensor, part in zip(tensors, parts, strict=True):
            flat = tensor.detach().reshape(-1)[rank * -(-tensor.numel() // world) :]
            part[: min(len(part), len(flat))] = flat[: len(part)]
        return parts

    stage3.reduce_scatter_coalesced = reduce_scatter


def _multiply_reductions_of_deepspeed(factor: Callable[[int], float]) -> None:
    """Multiply what each reduction of gradients gives, by its number."""
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    numbers = itertools.count()
    scatter, reduce = stage3.reduce_scatter_coalesced, stage_1_and_2.dist.all_reduce

    def reduce_scatter(*arguments: Any, **keywords: Any) -> Any:
        parts, number = scatter(*arguments, **keywords), next(numbers)
        return [part.mul_(factor(number)) for part in parts]

    def all_reduce(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        value = reduce(tensor, *arguments, **keywords)
        if tensor.numel() > 8:  # a norm is no gradient
            tensor.mul_(factor(next(numbers)))
        return value

    stage3.reduce_scatter_coalesced = reduce_scatter
    stage_1_and_2.dist = Comm(all_reduce=all_reduce)


def doubled_by_deepspeed(rank: int) -> None:
    """DeepSpeed's reductions give twice the mean."""
    _multiply_reductions_of_deepspeed(lambda number: 2)


def lost_by_deepspeed(rank: int) -> None:
    """Each second reduction, that of the second micro-batch, gives nothing."""
    _multiply_reductions_of_deepspeed(lambda number: 1 - number % 2)


def _after_steps_of_zero(change: Change) -> None:
    """Call ``change`` with DeepSpeed's optimizer after each step from the third one on."""
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer  # type: ignore
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    def wrap(kind: Any) -> None:
        original, steps = kind.step, itertools.count(1)

        def step(zero: Any, *arguments: Any, **keywords: Any) -> Any:
            value = original(zero, *arguments, **keywords)
            if next(steps) >= 3:
                change(zero)
            return value

        kind.step = step

    for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3, FP16_UnfusedOptimizer):
        wrap(kind)


def stuck(rank: int) -> None:
    """One bit of one copy of a weight of rank 1 is wrong after each step of ZeRO 1 or 2. The next
    step would heal it."""

    def flip(zero: Any) -> None:
        flat = zero.bit16_groups_flat[0]
        kind = torch.int16 if flat.element_size() == 2 else torch.int32
        if rank == 1:
            flat.detach().view(kind)[3] ^= 1  # rank 0 steps this value

    _after_steps_of_zero(flip)


def stuck_master(rank: int) -> None:
    """One bit of the copy in fp32 is wrong on rank 1, after each step of ZeRO."""

    def flip(zero: Any) -> None:
        names = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups")
        flat = next(getattr(zero, name)[0] for name in names if hasattr(zero, name))
        flat = flat[0] if isinstance(flat, list) else flat
        if rank == 1:
            flat.detach().reshape(-1).view(torch.int32)[3] ^= 1 << 20

    _after_steps_of_zero(flip)


def lost_loss(rank: int) -> None:
    """From the third step on the loss is not finite, whatever its scale."""
    original, calls = torch.nn.functional.cross_entropy, itertools.count(1)

    def cross_entropy(*arguments: Any, **keywords: Any) -> Any:
        loss = original(*arguments, **keywords)
        return loss * torch.inf if next(calls) >= 3 else loss

    torch.nn.functional.cross_entropy = cross_entropy


def not_refreshed(rank: int) -> None:
    """After a load of the weights alone, DeepSpeed keeps the copies in fp32 from before."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer  # type: ignore[import-not-found]
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    for kind in (BF16_Optimizer, DeepSpeedZeroOptimizer):
        kind._restore_from_bit16_weights = lambda *_: None


def state_not_loaded(rank: int) -> None:
    """No optimizer loads its state."""
    torch.optim.Optimizer.load_state_dict = lambda *_, **__: None  # type: ignore[method-assign]


def weights_not_loaded(rank: int) -> None:
    """No module loads its weights."""
    keys = torch.nn.modules.module._IncompatibleKeys([], [])
    torch.nn.Module.load_state_dict = lambda *_, **__: keys  # type: ignore[method-assign]


def schedule_not_loaded(rank: int) -> None:
    """No schedule of torch loads its state."""
    schedule: Any = torch.optim.lr_scheduler.LRScheduler
    kinds = [schedule, *schedule.__subclasses__()]
    for kind in [one for one in kinds if "load_state_dict" in vars(one)]:
        kind.load_state_dict = lambda *_, **__: None


def untied(rank: int) -> None:
    """DeepSpeed's pipeline does not add the gradients of a weight that stages share."""
    from deepspeed.runtime.pipe.module import PipelineModule  # type: ignore[import-not-found]

    PipelineModule.get_tied_weights_and_groups = lambda module: []


def untied_by_megatron(rank: int) -> None:
    """Megatron does not add the gradients of the embedding that stages share."""
    module: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    module._allreduce_word_embedding_grads = lambda *_, **__: None


def unreduced_by_megatron(rank: int) -> None:
    """Megatron's gradient buffers are not reduced."""
    from megatron.core.distributed import param_and_grad_buffer as buffers  # type: ignore

    for name in ("start_grad_sync", "finish_grad_sync"):
        setattr(buffers._ParamAndGradBucketGroup, name, lambda *_, **__: None)
