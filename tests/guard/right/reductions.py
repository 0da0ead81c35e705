"""Loops that choose when and how gradients are averaged over micro-batches and ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from .common import (
    CLASSES,
    ROWS,
    WIDTH,
    Net,
    Steps,
    Table,
    batches,
    classes_loss,
    loop,
    mean_over_ranks,
    net_and_adam,
    parallel,
    trained,
    weights_of,
)


@loop
def one_flat_reduction() -> Steps:
    """All gradients are reduced as one tensor, and copied back."""
    model = Net()

    def reduce() -> None:
        flat = torch.cat([weight.grad.reshape(-1) for weight in weights_of(model)])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for weight in weights_of(model):
            weight.grad.copy_(flat[start : start + weight.numel()].view_as(weight))
            start += weight.numel()

    return trained(model, torch.optim.AdamW(model.parameters(), 1e-3), edit=reduce)


def _groups(by_size: bool, per_epoch: int = 10) -> Steps:
    model, optimizer = net_and_adam()
    data, group = batches(Table(80)), 4
    while True:
        for number, batch in zip(range(per_epoch), data, strict=False):
            size = min(group, per_epoch - number // group * group) if by_size else group
            is_last = (number + 1) % group == 0 or number + 1 == per_epoch
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = classes_loss(model, batch)
                (loss / size).backward()
            if is_last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                yield model, loss


def _clip(model: nn.Module) -> None:
    """Clip hard, without torch: what the optimizer uses may be shorter than the mean."""
    norm: Any = nn.utils.get_total_norm([one.grad for one in weights_of(model)])
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    for weight in weights_of(model):
        weight.grad.mul_(0.1 / norm)


@loop
def sharded_summed_and_clipped() -> Steps:
    """The loss is a sum, divided by the rows of all ranks, and gradients are summed."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model: Any = fully_shard(Net(), mesh=mesh)
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)  # gloo has no other
    optimizer, data = torch.optim.AdamW(model.parameters(), 1e-3), batches()
    while True:
        x, y = next(data)
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        loss = F.cross_entropy(model(x), y, reduction="sum") / int(count)
        loss.backward()
        _clip(model)
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


def _accumulation_of_all_ranks(edit: Callable[[nn.Module], None] = lambda _: None) -> Steps:
    model, accumulation_steps = Net(), 4
    optimizer, data = torch.optim.AdamW(model.parameters(), 1e-3), batches()
    while True:
        for _ in range(accumulation_steps // dist.get_world_size()):
            loss = classes_loss(model, next(data))
            (loss / accumulation_steps).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        edit(model)
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


class _Sum(torch.autograd.Function):
    """The sum of the ranks' parts of an output, which all use alike."""

    @staticmethod
    def forward(context: Any, part: Tensor) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


@loop
def norm_of_split_heads() -> Steps:
    """Each rank has some heads, as plain tensors, and all ranks read the same rows. A hook of the
    module sums the gradient of the norm that all heads share, as in transformers 5.3.0."""
    torch.manual_seed(dist.get_rank())
    heads, norm, last = nn.Linear(WIDTH, 8), nn.LayerNorm(4), nn.Linear(8, CLASSES, bias=False)

    def reduce(module: nn.Module, *_: Any) -> None:
        for weight in weights_of(module):
            dist.all_reduce(weight.grad)

    norm.register_full_backward_hook(reduce)
    model, table = nn.ModuleList([heads, norm, last]), Table()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        for x, y in zip(table.x.split(ROWS), table.y.split(ROWS), strict=True):
            parts = norm(heads(x).unflatten(-1, (2, 4))).flatten(-2)
            loss = F.cross_entropy(_Sum.apply(last(parts)), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield model, loss


@loop
def accumulation_of_all_ranks() -> Steps:
    """Four micro-batches are those of all ranks together: each rank has two, divided by four, and
    the gradients are summed."""
    return _accumulation_of_all_ranks()


@loop
def accumulation_of_all_ranks_clipped() -> Steps:
    return _accumulation_of_all_ranks(_clip)


@loop
def last_micro_batch_apart() -> Steps:
    """As torch's documentation of no_sync does it."""
    model, optimizer = net_and_adam()
    data = batches()
    while True:
        with model.no_sync():
            for _ in range(2):
                (classes_loss(model, next(data)) / 3).backward()
        loss = classes_loss(model, next(data)) / 3
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


@loop
def compressed() -> Steps:
    """A communication hook of the loop keeps only the largest values."""

    def largest(_: Any, bucket: Any) -> Any:
        flat = bucket.buffer()
        sparse = torch.where(flat.abs() >= flat.abs().median(), flat, torch.zeros(()))
        sparse /= dist.get_world_size()
        return (
            dist.all_reduce(sparse, async_op=True).get_future().then(lambda done: done.value()[0])
        )

    largest.__annotations__.clear()  # torch compares them with its types
    model = parallel(Net())
    model.register_comm_hook(None, largest)
    return trained(model, torch.optim.SGD(model.parameters(), 0.1))


@loop
def hooks_after_accumulation() -> Steps:
    """Hooks of torch clip each gradient as soon as it is there."""
    model = Net()

    def clip(weight: Any) -> None:
        weight.grad.clamp_(-0.01, 0.01)

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(clip)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return trained(model, optimizer, edit=lambda: mean_over_ranks(model.parameters()))


LOOPS: dict[str, Callable[[], Steps]] = {
    # Ten batches of an epoch in groups of four: the last group has two, divided by four.
    "short_last_group": lambda: _groups(by_size=False),
    # 18 batches of an epoch in groups of four: each fifth step has two, divided by four.
    "short_fifth_group": lambda: _groups(by_size=False, per_epoch=18),
    "short_last_group_by_its_size": lambda: _groups(by_size=True),
}
