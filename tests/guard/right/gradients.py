"""Loops that change gradients, or compute more than they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .common import (
    CLASSES,
    WIDTH,
    Net,
    Steps,
    batches,
    classes_loss,
    loop,
    mean_over_ranks,
    net_and_adam,
    no_wrapper,
    parallel,
    trained,
    weights_of,
)


def _edited(
    edit: Callable[[Any, Any], None], wrap: Any = parallel, loss_of: Any = classes_loss
) -> Steps:
    """Train, and edit the gradients before each step."""
    model = wrap(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def reduce_and_edit() -> None:
        if wrap is not parallel:
            mean_over_ranks(model.parameters())
        edit(model, optimizer)

    return trained(model, optimizer, edit=reduce_and_edit, loss_of=loss_of)


NOISE = torch.Generator()


def _noise(model: Any, optimizer: Any) -> None:
    for weight in model.parameters():
        weight.grad.add_(torch.randn(weight.shape, generator=NOISE), alpha=0.05)


def _clip_each(model: Any, optimizer: Any) -> None:
    for weight in model.parameters():
        weight.grad.mul_(min(1.0, 0.01 / float(weight.grad.norm())))


def _clip_units(model: Any, optimizer: Any) -> None:
    """Adaptive clipping, by the norms of rows."""
    for weight in model.parameters():
        rows = weight.detach().reshape(len(weight), -1).norm(dim=1).clamp(min=1e-3) * 0.01
        norms = weight.grad.reshape(len(weight), -1).norm(dim=1).clamp(min=1e-6)
        scale = (rows / norms).clamp(max=1.0).reshape(-1, *[1] * (weight.ndim - 1))
        weight.grad = weight.grad * scale


def _decay(model: Any, optimizer: Any) -> None:
    for weight in model.parameters():
        weight.grad.add_(weight.detach(), alpha=0.1)


def _centralize(model: Any, optimizer: Any) -> None:
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.grad -= weight.grad.mean(dim=1, keepdim=True)


@loop
def noise() -> Steps:
    NOISE.manual_seed(5)
    return _edited(_noise)


@loop
def noise_without_a_wrapper() -> Steps:
    NOISE.manual_seed(5)
    return _edited(_noise, wrap=no_wrapper)


@loop
def signs() -> Steps:
    def take_signs(model: nn.Module, _: Any) -> None:
        for weight in weights_of(model):
            weight.grad.sign_()

    return _edited(take_signs)


@loop
def normalized() -> Steps:
    """All gradients together have the norm 1."""

    def normalize(model: Any, _: Any) -> None:
        norm = nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
        for weight in model.parameters():
            weight.grad /= norm

    return _edited(normalize)


@loop
def masked() -> Steps:
    """Some weights are pruned: their gradients are zero."""

    def mask(model: Any, _: Any) -> None:
        model.module.first.weight.grad[::2] = 0

    return _edited(mask)


@loop
def not_finite_to_zero() -> Steps:
    """Some batches have no labels: their loss is nan."""
    steps = iter(range(10**6))

    def loss_of(model: Any, batch: Any) -> Tensor:
        x, y = batch
        counts = (y != 0) if next(steps) % 3 else torch.zeros(len(y))
        return (F.cross_entropy(model(x), y, reduction="none") * counts).sum() / counts.sum()

    def clean(model: Any, _: Any) -> None:
        for weight in model.parameters():
            torch.nan_to_num_(weight.grad)

    return _edited(clean, loss_of=loss_of)


@loop
def tensor_hooks() -> Steps:
    """Hooks on parameters clip what each rank computes."""
    model = Net()
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    model = parallel(model)
    return trained(model, torch.optim.SGD(model.parameters(), 0.1))


def _scaled_by(scale: int, loss_of: Any) -> Steps:
    """A constant loss scale, without torch's scaler."""

    def unscale(model: Any, _: Any) -> None:
        for weight in model.parameters():
            weight.grad /= scale

    return _edited(unscale, loss_of=lambda model, batch: loss_of(model, batch) * scale)


def _tasks(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    x, y = batch
    scores = model(x)
    return F.cross_entropy(scores, y), F.mse_loss(scores, F.one_hot(y, CLASSES).float())


@loop
def conflicts_projected() -> Steps:
    """PCGrad: the gradients of two tasks, without what is against the other."""
    model, optimizer = net_and_adam()
    weights = list(model.parameters())
    for batch in batches():
        losses = []
        gradients = []
        for number in range(2):
            optimizer.zero_grad()
            losses.append(_tasks(model, batch)[number])  # DDP reduces once after each forward
            losses[-1].backward()
            gradients.append([weight.grad.clone() for weight in weights])
        for weight, gradient, second in zip(weights, *gradients, strict=True):
            against = (gradient * second).sum().clamp(max=0) / (second.square().sum() + 1e-12)
            weight.grad = gradient - against * second + second
        optimizer.step()
        yield model, losses[0]


@loop
def gradient_is_measured_first() -> Steps:
    """A backward measures the gradient of one task, and its result is not used."""
    model, optimizer = net_and_adam()
    for batch in batches():
        _tasks(model, batch)[0].backward()
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
        for weight in model.parameters():
            weight.grad = None
        one, other = _tasks(model, batch)  # DDP reduces once after each forward
        loss = one + other / (1 + norm)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


@loop
def steps_skipped_by_norm() -> Steps:
    """Large gradients are thrown away: half of all steps."""
    model, optimizer = net_and_adam()
    generator = torch.Generator().manual_seed(3)
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        if float(torch.rand(1, generator=generator)) < 0.6:
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


@loop
def weighted_by_rows() -> Steps:
    """Ranks have batches of different sizes, and the loop weighs their gradients."""
    model, optimizer = net_and_adam(no_wrapper)
    count = 3 + 2 * dist.get_rank()
    total = sum(3 + 2 * rank for rank in range(dist.get_world_size()))
    for x, y in batches(rows=8):
        loss = F.cross_entropy(model(x[:count]), y[:count])
        loss.backward()
        for weight in weights_of(model):
            weight.grad *= count / total
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


@loop
def cancelled_at_first() -> Steps:
    """The last layer does not train in the first steps, as in DINO."""
    steps = iter(range(10**6))

    def cancel(model: Any, optimizer: Any) -> None:
        for weight in model.module.last.parameters() if next(steps) < 8 else ():
            weight.grad = None

    return _edited(cancel)


@loop
def frozen_by_zeros() -> Steps:
    """All gradients are multiplied by 0 in some steps."""
    steps = iter(range(10**6))

    def freeze(model: Any, optimizer: Any) -> None:
        for weight in model.parameters():
            weight.grad.mul_(float(next(steps) % 8 > 40))

    return _edited(freeze)


@loop
def limit_times_the_scale() -> Steps:
    """Gradients are clipped while they are scaled, to a limit that is scaled, too."""
    model, optimizer = net_and_adam()
    scaler = torch.amp.GradScaler("cpu", 2.0**14)
    for batch in batches():
        optimizer.zero_grad()
        loss = classes_loss(model, batch)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.005 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        yield model, loss


@loop
def multipliers() -> Steps:
    """Multipliers of constraints get their gradients from what all ranks have reduced."""
    model, multipliers = Net(32), nn.Parameter(torch.zeros(32))
    optimizers = [torch.optim.SGD(model.parameters(), 0.01), torch.optim.SGD([multipliers], 0.1)]
    noise = torch.Generator().manual_seed(dist.get_rank())
    while True:
        scores = model(torch.randn(8, WIDTH, generator=noise))
        loss = scores.square().mean() + (multipliers.detach() * scores.mean(0)).sum()
        loss.backward()
        mean_over_ranks(model.parameters())
        excess = scores.detach().mean(0)
        dist.all_reduce(excess)
        (-multipliers @ excess).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield model, loss


LOOPS: dict[str, Callable[[], Steps]] = {
    "each_is_clipped": lambda: _edited(_clip_each),
    "each_is_clipped_without_a_wrapper": lambda: _edited(_clip_each, wrap=no_wrapper),
    "units_are_clipped": lambda: _edited(_clip_units),
    "values_are_clipped": lambda: _edited(
        lambda model, _: nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    ),
    "decay_in_gradients": lambda: _edited(_decay),
    "centralized": lambda: _edited(_centralize),
    # The first layer learns more slowly.
    "layers_with_factors": lambda: _edited(
        lambda model, _: model.module.first.weight.grad.mul_(0.1)
    ),
    "scaled_by_a_number": lambda: _scaled_by(1024, classes_loss),
    # The scaled loss is infinite in fp16; its gradients are finite.
    "scaled_beyond_16_bits": lambda: _scaled_by(
        49152, lambda model, batch: classes_loss(model, batch).half()
    ),
}
