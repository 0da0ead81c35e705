"""Loops whose gradient is that of other weights or rows nearby."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .common import Net, Steps, batches, classes_loss, loop, net_and_adam, parallel


@torch.no_grad()
def _move(model: Any, steps: list[Tensor], times: float) -> None:
    for weight, step in zip(model.parameters(), steps, strict=True):
        weight.add_(step, alpha=times)


@loop
def sharpness_aware() -> Steps:
    """SAM: the gradient is that of a point nearby."""
    model = parallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in batches():
        classes_loss(model, batch).backward()
        steps = [0.05 * weight.grad / (weight.grad.norm() + 1e-6) for weight in model.parameters()]
        _move(model, steps, 1.0)
        optimizer.zero_grad()
        loss = classes_loss(model, batch)
        loss.backward()
        _move(model, steps, -1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


class Sam(torch.optim.Optimizer):
    """As published: it has the optimizer that steps, and shares its groups."""

    def __init__(self, parameters: Any, base: Any, **settings: Any) -> None:
        super().__init__(parameters, {"rho": 0.05, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def ascend(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["old"] = weight.clone()
                weight.add_(weight.grad / (weight.grad.norm() + 1e-9), alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.copy_(self.state[weight]["old"])
        self.base.step()
        self.zero_grad()


@loop
def sharpness_aware_optimizer() -> Steps:
    model = parallel(Net())
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        optimizer.ascend()
        classes_loss(model, batch).backward()
        optimizer.descend()
        yield model, loss


@loop
def adversarial() -> Steps:
    """The loss of a row is that of its worst neighbour: a backward finds that."""
    model, optimizer = net_and_adam()
    for x, y in batches():
        worst = x.clone().requires_grad_()
        F.cross_entropy(model(worst), y).backward()
        assert worst.grad is not None
        worst = (worst + 0.1 * worst.grad.sign()).detach()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(worst), y)
        loss.backward()
        optimizer.step()
        yield model, loss


@loop
def adversarial_steps() -> Steps:
    model, optimizer = net_and_adam()
    for x, y in batches():
        worst = x.clone()
        for _ in range(3):
            worst.requires_grad_()
            with model.no_sync():
                F.cross_entropy(model(worst), y).backward()
            assert worst.grad is not None
            worst = (worst + 0.03 * worst.grad.sign()).detach()
        model.zero_grad()
        loss = F.cross_entropy(model(worst), y)
        loss.backward()
        optimizer.step()
        yield model, loss


def _in_one_line(batches_of_step: int) -> Steps:
    """One line computes two gradients; the first one moves the weights through ``.data``."""
    model = parallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = batches()
    while True:
        pair = [next(data) for _ in range(batches_of_step)]
        before = [weight.detach().clone() for weight in model.parameters()]
        for number in range(2):
            optimizer.zero_grad()
            loss = classes_loss(model, pair[-number])
            loss.backward()
            for weight, value in zip(model.parameters(), before, strict=True):
                weight.data = value if number else weight.data + 0.05 * weight.grad
        optimizer.step()
        yield model, loss


LOOPS: dict[str, Callable[[], Steps]] = {
    "sharpness_aware_in_one_line": lambda: _in_one_line(1),
    # MAML: the gradient of a second batch, where a step by the first one leads.
    "meta_learning_in_one_line": lambda: _in_one_line(2),
}
