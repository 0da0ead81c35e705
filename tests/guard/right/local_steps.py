"""Loops whose ranks train alone for some steps, and then average their weights."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import all_reduce
from torch.utils.data import DataLoader, Subset

from .common import (
    ROWS,
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
)


def _local(
    model: Any,
    average: Callable[[list[Any]], None],
    every: int,
    warmup: int = 0,
    data: Any = None,
    optimizer: Any = None,
) -> Steps:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    weights = list(model.parameters())
    for step, batch in enumerate(data or batches(), 1):
        is_local = step > warmup and hasattr(model, "no_sync")
        with model.no_sync() if is_local else contextlib.nullcontext():
            loss = classes_loss(model, batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step > warmup and step % every == 0:
            average(weights)
        yield model, loss


@torch.no_grad()
def _average_each(weights: list[Any]) -> None:
    for weight in weights:
        dist.all_reduce(weight.data)
        weight.data /= dist.get_world_size()


@torch.no_grad()
def _copies(weights: list[Any]) -> None:
    for weight in weights:
        mean = weight.detach().clone()
        all_reduce(mean)
        weight.copy_(mean / dist.get_world_size())


@torch.no_grad()
def _at_once(weights: list[Any]) -> None:
    flat = nn.utils.parameters_to_vector(weights)
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), weights)


@torch.no_grad()
def _gathered(weights: list[Any]) -> None:
    for weight in weights:
        parts = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, weight.detach())
        weight.copy_(torch.stack(parts).mean(0))


class Gated(Net):
    """A gate of one value, and a bias of two classes, have gradients of one direction."""

    def __init__(self) -> None:
        super().__init__(2)
        self.gate = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gate * super().forward(x)


@loop
def of_two_classes() -> Steps:
    data = ((x, y % 2) for x, y in batches())
    return _local(parallel(Gated()), _average_each, 6, data=data)


@loop
def with_adam() -> Steps:
    """Its first step moves a weight of one value as far on all ranks."""
    model = Gated()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    data = ((x, y % 2) for x, y in batches())
    return _local(model, _average_each, 8, data=data, optimizer=optimizer)


@loop
def sweep_of_rates() -> Steps:
    """Each rank trains a model of its own with another rate, on the same rows on purpose."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1 ** (1 + dist.get_rank()))
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(Table(), ROWS, shuffle=True, generator=generator)
    return trained(model, optimizer, itertools.chain.from_iterable(itertools.repeat(loader)))


@loop
def micro_batches_of_local_steps() -> Steps:
    model, optimizer = net_and_adam()
    data = batches()
    for step in itertools.count(1):
        for _ in range(2):
            with model.no_sync():
                loss = classes_loss(model, next(data)) / 2
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 0:
            _average_each(list(model.parameters()))
        yield model, loss


@loop
def difference_is_averaged() -> Steps:
    """The ranks move a common copy by the mean of what they have moved, with momentum."""
    model, optimizer = net_and_adam()
    weights = list(model.parameters())
    common = [weight.detach().clone() for weight in weights]
    speed = [torch.zeros_like(weight) for weight in weights]
    for step, batch in enumerate(batches(), 1):
        with model.no_sync():
            loss = classes_loss(model, batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 0:
            with torch.no_grad():
                for weight, start, moment in zip(weights, common, speed, strict=True):
                    weight.grad = start - weight
                    mean_over_ranks([weight])
                    moment.mul_(0.9).add_(weight.grad)
                    start.sub_(0.7 * moment)
                    weight.copy_(start)
                    weight.grad = None
        yield model, loss


@loop
def fold_of_each_rank() -> Steps:
    """Cross-validation: each rank trains a model of its own, without the rows of its fold."""
    rows = [row for row in range(256) if row % 5 != dist.get_rank()]
    loader = DataLoader(Subset(Table(), rows), ROWS, shuffle=True)
    model = Net()
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    return trained(model, torch.optim.AdamW(model.parameters(), 1e-3), epochs)


LOOPS: dict[str, Callable[[], Steps]] = {
    "without_synchronisation": lambda: _local(parallel(Net()), _average_each, 8),
    "copies_are_averaged": lambda: _local(parallel(Net()), _copies, 7),
    "after_a_warmup": lambda: _local(parallel(Net()), _at_once, 7, warmup=3),
    "without_a_wrapper": lambda: _local(Net(), _at_once, 9),
    "weights_are_gathered": lambda: _local(Net(), _gathered, 7),
}
