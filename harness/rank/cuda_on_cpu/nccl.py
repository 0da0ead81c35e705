"""What torch.distributed does with gloo where NCCL and GPUs are requested, and SyncBatchNorm, which
normalises over the rows of all ranks, on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

from harness.rank.cuda_on_cpu.devices import Count
from harness.rank.replacement import Substitute


def with_gloo(position: int) -> Substitute:
    """Call a function whose argument ``position`` is a backend, with gloo instead of NCCL."""

    def backend(name: Any, count: Count) -> Any:
        if isinstance(name, str) and "nccl" in name.lower():
            count("nccl")
            return "gloo"
        return name

    def substitute(count: Count, original: Any, /, *arguments: Any, **keywords: Any) -> Any:
        positional = list(arguments)
        if len(positional) > position:
            positional[position] = backend(positional[position], count)
        if "backend" in keywords:
            keywords["backend"] = backend(keywords["backend"], count)
        if keywords.pop("device_id", None) is not None:
            count("device_id")
        return original(*positional, **keywords)

    return substitute


def barrier(
    count: Count, original: Any, /, *arguments: Any, device_ids: Any = None, **keywords: Any
) -> Any:
    """Wait without GPUs, which gloo does not take."""
    if device_ids is not None:
        count("device_ids")
    return original(*arguments, **keywords)


def get_future(count: Count, original: Any, /, work: Any) -> Any:
    """Return the future of an operation, also of a reduce-scatter, for which gloo lacks it."""
    from torch.futures import Future

    try:
        return original(work)
    except RuntimeError:
        count("get_future")
        work.wait()
    future: Future[None] = Future()
    future.set_result(None)
    return future


def without_gpus(
    count: Count, original: Any, /, model: Any, module: Any, *arguments: Any, **keywords: Any
) -> None:
    """Make a ``DistributedDataParallel`` without its arguments that name GPUs."""
    for name in ("device_ids", "output_device"):
        if keywords.pop(name, None) is not None:
            count(name)
    original(model, module, *([None] * len(arguments[:2])), *arguments[2:], **keywords)


def synchronized(count: Count, original: Any, /, norm: Any, input: Any) -> Any:
    """The forward of a SyncBatchNorm. On one rank, and in evaluation, it is that of a BatchNorm."""
    import torch
    from torch import distributed
    from torch.nn.modules.batchnorm import _BatchNorm

    group = norm.process_group or (
        distributed.group.WORLD if distributed.is_initialized() else None
    )
    if not norm.training or group is None or distributed.get_world_size(group) < 2:
        return _BatchNorm.forward(norm, input)
    count("SyncBatchNorm")
    others = [dimension for dimension in range(input.dim()) if dimension != 1]
    shape = [1, -1, *[1] * (input.dim() - 2)]
    values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    number = _summed(values.new_tensor([values.numel() / values.shape[1]]), group)
    mean = _summed(values.sum(others), group) / number
    centred = values - mean.view(shape)
    variance = _summed(centred.square().sum(others), group) / number
    if norm.track_running_stats:
        _track(norm, mean.detach(), variance.detach() * number / (number - 1))
    normalised = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        normalised = normalised * norm.weight.view(shape) + norm.bias.view(shape)
    return normalised.to(input.dtype)


def _summed(values: Any, group: Any) -> Any:
    """The sum over the ranks; its backward sums gradients over the ranks, too."""
    return _sum_function().apply(values, group)


@cache
def _sum_function() -> Any:
    import torch
    from torch.distributed import all_reduce

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: Any, group: Any) -> Any:
            context.group, total = group, values.clone()
            all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            total = gradients[0].clone()
            all_reduce(total, group=context.group)
            return total, None

    return Sum


def _track(norm: Any, mean: Any, variance: Any) -> None:
    """Move the running statistics, by a fixed part or as their average."""
    norm.num_batches_tracked.add_(1)
    part = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.mul_(1 - part).add_(mean, alpha=part)
    norm.running_var.mul_(1 - part).add_(variance, alpha=part)
