"""What the loops share: a model, rows, and how ranks read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH, CLASSES, ROWS = 8, 5, 4

Steps = Iterator[tuple[Any, Any]]
"""After each step, the model and its loss."""


def loop(function: Callable[[], Steps]) -> Callable[[], Steps]:
    """Mark a function that trains."""
    function.is_loop_of = function.__module__  # type: ignore[attr-defined]
    return function


class Net(nn.Module):
    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, 16), nn.LayerNorm(16)
        self.last = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(F.gelu(self.first(x))))


class Table(Dataset[Any]):
    """Rows of numbers with their classes."""

    def __init__(self, count: int = 256, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, WIDTH, generator=generator)
        self.y = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def weights_of(model: nn.Module) -> list[Any]:
    """The parameters of a model, all of which have gradients."""
    return list(model.parameters())


def parallel(model: nn.Module, **settings: Any) -> Any:
    return nn.parallel.DistributedDataParallel(model, **settings)


def no_wrapper(model: nn.Module) -> Any:
    """Without a wrapper."""
    return model


def net_and_adam(wrap: Callable[[nn.Module], Any] = parallel) -> tuple[Any, Any]:
    """A model and its optimizer."""
    model = wrap(Net())
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def batches(data: Any = None, rows: int = ROWS, **settings: Any) -> Iterator[Any]:
    """Epochs without an end, split among the ranks."""
    data = data or Table()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, rows, sampler=sampler, drop_last=True, **settings)
    for epoch in range(10**6):
        sampler.set_epoch(epoch)
        yield from loader


def mean_over_ranks(parameters: Any) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def classes_loss(model: Any, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def trained(
    model: Any,
    optimizer: Any,
    data: Any = None,
    before: Any = None,
    edit: Any = None,
    loss_of: Callable[[Any, Any], Tensor] = classes_loss,
) -> Steps:
    """Train. ``before`` gets the number of the step that begins, and the loss of the last one;
    ``edit`` is called before the optimizer steps."""
    loss = None
    for step, batch in enumerate(data or batches()):
        if before is not None:
            before(step, loss)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if edit is not None:
            edit()
        optimizer.step()
        yield model, loss


def reading(loader: Any, sampler: Any = None, between: Any = None) -> Steps:
    """Train on epochs of a loader; ``between`` them something gets the model."""
    model, optimizer = net_and_adam()

    def epochs() -> Iterator[Any]:
        for epoch in range(10**6):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for batch in loader:
                yield batch[-2:]
            if between is not None:
                between(model)

    return trained(model, optimizer, epochs())
