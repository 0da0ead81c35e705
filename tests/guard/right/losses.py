"""Loops with losses of several parts, or with weights."""

from __future__ import annotations

import contextlib
import itertools
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
    Table,
    batches,
    classes_loss,
    loop,
    net_and_adam,
    no_wrapper,
    parallel,
    trained,
    weights_of,
)


def _by(loss_of: Any, data: Any = None, model: Any = None) -> Steps:
    model = parallel(model or Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    steps = itertools.count()
    return trained(
        model, optimizer, data, loss_of=lambda model, batch: loss_of(model, *batch, next(steps))
    )


@loop
def weight_of_a_batch() -> Steps:
    """Each batch has a weight of its own, near 1."""

    def weighted(model: Any, x: Tensor, y: Tensor, step: int) -> Tensor:
        return F.cross_entropy(model(x), y) * (1 + 0.09 * ((step % 5) - 2) / 2)

    return _by(weighted)


@loop
def weights_of_classes() -> Steps:
    weights = torch.linspace(0.5, 2, CLASSES)
    return _by(lambda model, x, y, _: F.cross_entropy(model(x), y, weight=weights))


@loop
def smoothed_and_ignored() -> Steps:
    def smoothed(model: Any, x: Tensor, y: Tensor, _: int) -> Tensor:
        y = y.masked_fill(y == 0, -100)
        y[0] = 1
        return F.cross_entropy(model(x), y, label_smoothing=0.1)

    return _by(smoothed)


@loop
def focal() -> Steps:
    def loss_of(model: Any, x: Tensor, y: Tensor, _: int) -> Tensor:
        losses = F.cross_entropy(model(x), y, reduction="none")
        return ((1 - torch.exp(-losses)) ** 2 * losses).mean()

    return _by(loss_of)


@loop
def learned_weights() -> Steps:
    """Two tasks, weighted by their uncertainties, which train, too."""
    model: Any = Net()
    model.uncertainty = nn.Parameter(torch.zeros(2))

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            scores = self.model(x)
            loss_of_classes = F.cross_entropy(scores, y)
            loss_of_values = F.mse_loss(scores, F.one_hot(y, CLASSES).float())
            pair = torch.stack([loss_of_classes, loss_of_values])
            return (pair * torch.exp(-model.uncertainty) + model.uncertainty).sum()

    return _by(lambda model, x, y, _: model(x, y), model=Tasks())


def _two_backwards(separate_loaders: bool) -> Steps:
    model, optimizer = net_and_adam()
    others = batches(Table(seed=2)) if separate_loaders else None
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        x, y = next(others) if others else (x.flip(0), y.flip(0))
        loss = F.cross_entropy(model(-x), y)
        loss.backward()
        optimizer.step()
        yield model, loss


def _own_mean(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return -model(x).log_softmax(1).gather(1, y[:, None]).mean()


@loop
def tasks_in_one_place() -> Steps:
    """Several losses of one batch, each a mean, have backwards in one line: they are added."""
    model, optimizer = net_and_adam()
    for x, y in batches():
        optimizer.zero_grad()
        for task in range(3):
            loss = _own_mean(model, x.roll(task, 1), y)
            loss.backward()
        optimizer.step()
        yield model, loss


@loop
def own_mean_of_micro_batches() -> Steps:
    """It is multiplied by the number of micro-batches, and divided by it twice."""
    model, optimizer = net_and_adam()
    data = batches()
    while True:
        optimizer.zero_grad()
        for number in range(4):
            with contextlib.nullcontext() if number == 3 else model.no_sync():
                loss = 4.0 * _own_mean(model, *next(data)) / 4**2
                loss.backward()
        optimizer.step()
        yield model, loss


@loop
def own_mean_whose_gradients_are_divided() -> Steps:
    """The loop divides the gradients by the number of micro-batches."""
    model, optimizer = net_and_adam(no_wrapper)
    data = batches()
    while True:
        optimizer.zero_grad()
        for _ in range(4):
            loss = _own_mean(model, *next(data))
            loss.backward()
        for weight in weights_of(model):
            dist.all_reduce(weight.grad)
            weight.grad /= 4 * dist.get_world_size()
        optimizer.step()
        yield model, loss


@loop
def features_are_cached() -> Steps:
    """A contrastive loss of several parts of a batch: their features get the gradients later."""
    model, optimizer = net_and_adam()
    for x, _ in batches(rows=8):
        optimizer.zero_grad()
        with torch.no_grad():
            cached = torch.cat([model(part) for part in x.chunk(2)])
        features = F.normalize(cached.requires_grad_())
        targets = torch.arange(len(x)).roll(1)
        loss = F.cross_entropy(features @ features.T / 0.1 - 10 * torch.eye(len(x)), targets)
        loss.backward()
        assert cached.grad is not None
        parts = zip(x.chunk(2), cached.grad.chunk(2), strict=True)
        for number, (part, gradient) in enumerate(parts):
            with contextlib.nullcontext() if number else model.no_sync():
                model(part).backward(gradient)
        optimizer.step()
        yield model, loss


def _other_terms_of_all_ranks(penalty_of: Any) -> Steps:
    """A sum is divided by the targets of all ranks, and all terms are multiplied by the ranks: also
    a penalty, which the loop has divided by them."""
    ranks = dist.get_world_size()

    def loss_of(model: Any, x: Tensor, y: Tensor, _: int) -> Tensor:
        count = torch.tensor(len(y))
        dist.all_reduce(count)
        scores = model(x)
        penalty = penalty_of(scores, count)
        return (F.cross_entropy(scores, y, reduction="sum") / count + 0.1 * penalty) * ranks

    return _by(loss_of)


@loop
def auxiliary_loss_ends() -> Steps:
    """Two auxiliary losses of the first steps have backwards of their own."""
    model, optimizer = net_and_adam()
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        if step < 8:
            F.cross_entropy(model(-x), y).backward()
            F.mse_loss(model(x), F.one_hot(y, CLASSES).float()).backward()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield model, loss


@loop
def real_and_fake() -> Steps:
    """A GAN as in torch's tutorial: the critic has two backwards, the generator steps second."""
    torch.manual_seed(0)
    generator, critic = parallel(Net(WIDTH)), parallel(Net(1))
    steps = [torch.optim.Adam(one.parameters(), 2e-4, (0.5, 0.999)) for one in (critic, generator)]
    torch.manual_seed(dist.get_rank())
    loss_of = nn.BCEWithLogitsLoss()
    for x, _ in batches():
        ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        critic.zero_grad()
        loss_of(critic(x), ones).backward()
        fake = generator(torch.randn(len(x), WIDTH))
        loss_of(critic(fake.detach()), zeros).backward()
        steps[0].step()
        generator.zero_grad()
        loss = loss_of(critic(fake), ones)
        loss.backward()
        steps[1].step()
        yield generator, loss


@loop
def many_critic_steps() -> Steps:
    """WGAN: five steps of the critic, whose weights are clipped, for one of the generator."""
    generator, critic = parallel(Net(WIDTH)), parallel(Net(1))
    of_critic = torch.optim.RMSprop(critic.parameters(), 5e-4)
    of_generator = torch.optim.RMSprop(generator.parameters(), 5e-4)
    torch.manual_seed(dist.get_rank())
    for step, (x, _) in enumerate(batches()):
        of_critic.zero_grad()
        fake = generator(torch.randn(len(x), WIDTH)).detach()
        loss = critic(fake).mean() - critic(x).mean()
        loss.backward()
        of_critic.step()
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-0.05, 0.05)
        if step % 5 == 4:
            of_generator.zero_grad()
            loss = -critic(generator(torch.randn(len(x), WIDTH))).mean()
            loss.backward()
            of_generator.step()
        yield generator, loss


@loop
def contrastive() -> Steps:
    """Each rank's loss has the features of all ranks, and gradients flow to its own: the loop
    multiplies by the ranks, as DDP divides by them."""

    def loss_of(model: Any, x: Tensor, _: Tensor, step: int) -> Tensor:
        view, second_view = F.normalize(model(x)), F.normalize(model(x + 0.1 * torch.randn_like(x)))
        gathered = [torch.zeros_like(second_view) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, second_view.detach())
        gathered[dist.get_rank()] = second_view
        targets = torch.arange(len(x)) + dist.get_rank() * len(x)
        loss = F.cross_entropy(view @ torch.cat(gathered).T / 0.1, targets)
        return loss * dist.get_world_size()

    return _by(loss_of)


@loop
def contrastive_with_gradients() -> Steps:
    from torch.distributed.nn.functional import all_gather

    def loss_of(model: Any, x: Tensor, _: Tensor, step: int) -> Tensor:
        view, second_view = F.normalize(model(x)), F.normalize(model(x + 0.1 * torch.randn_like(x)))
        scores = torch.cat(all_gather(view)) @ torch.cat(all_gather(second_view)).T / 0.1
        targets = torch.arange(len(scores))
        return (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2

    return _by(loss_of)


@loop
def momentum_contrast() -> Steps:
    """MoCo: keys of a slow copy, and a queue of them."""
    model, slow = parallel(Net()), Net()
    slow.load_state_dict(model.module.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    queue = F.normalize(torch.randn(32, CLASSES))
    for x, _ in batches():
        with torch.no_grad():
            for mine, weight in zip(slow.parameters(), model.parameters(), strict=True):
                mine.mul_(0.99).add_(weight, alpha=0.01)
            keys = F.normalize(slow(x))
        scores = F.normalize(model(x)) @ torch.cat([keys, queue]).T / 0.2
        loss = F.cross_entropy(scores, torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gathered = [torch.zeros_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, keys)
        queue = torch.cat([*gathered, queue])[:32]
        yield model, loss


@loop
def distillation() -> Steps:
    teacher = Net().eval()

    def loss_of(model: Any, x: Tensor, y: Tensor, _: int) -> Tensor:
        scores = model(x)
        with torch.no_grad():
            soft_targets = teacher(x).softmax(1)
        soft = F.kl_div(scores.log_softmax(1), soft_targets, reduction="batchmean")
        return 0.3 * F.cross_entropy(scores, y) + 0.7 * soft

    return _by(loss_of)


@loop
def counted_by_all_tokens() -> Steps:
    """A sum of losses divided by the targets of all ranks, times the ranks."""

    def loss_of(model: Any, x: Tensor, y: Tensor, _: int) -> Tensor:
        y = y.masked_fill(torch.rand(len(y)) < 0.3, -100)
        y[0] = 1
        count = (y != -100).sum()
        dist.all_reduce(count)
        loss = F.cross_entropy(model(x), y, reduction="sum")
        return loss * dist.get_world_size() / count

    return _by(loss_of, batches(rows=16))


@loop
def policy_gradients() -> Steps:
    """PPO: rollouts of each rank, read by several epochs of a loader with the ranks' one seed."""
    model = parallel(Net(CLASSES + 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-4, eps=1e-5)
    noise = torch.Generator().manual_seed(7 + dist.get_rank())
    while True:
        states = torch.randn(16, WIDTH, generator=noise)
        with torch.no_grad():
            before = torch.distributions.Categorical(logits=model.module(states)[:, 1:])
            actions = before.sample()
            old = before.log_prob(actions)
        gains = torch.randn(16, generator=noise)
        rollout = torch.utils.data.TensorDataset(states, actions, old, gains)
        for _ in range(3):
            for x, action, was, gain in torch.utils.data.DataLoader(rollout, 8, shuffle=True):
                out = model(x)
                ratio = (
                    torch.distributions.Categorical(logits=out[:, 1:]).log_prob(action) - was
                ).exp()
                clipped = ratio.clamp(0.8, 1.2) * gain
                loss = -torch.min(ratio * gain, clipped).mean() + 0.5 * F.mse_loss(out[:, 0], gain)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                yield model, loss


@loop
def values_alone() -> Steps:
    """Q-learning from a buffer that each rank fills itself, with a slow target."""
    model, target = parallel(Net(1)), Net(1)
    target.load_state_dict(model.module.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    noise = torch.Generator().manual_seed(7 + dist.get_rank())
    for step in range(10**6):
        x, following = torch.randn(2, 16, WIDTH, generator=noise)
        with torch.no_grad():
            returns = torch.randn(16, 1, generator=noise) + 0.9 * target(following)
        loss = 0.5 * F.mse_loss(model(x), returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            target.load_state_dict(model.module.state_dict())
        yield model, loss


RATE_OF_TASK = 2.0
"""A weight that is the number of ranks by chance."""


@loop
def padded_rows() -> Steps:
    """A sum of rows is divided by as many as there may be."""

    def padded(model: Any, x: Tensor, y: Tensor, step: int) -> Tensor:
        rows = len(y) - (step % 2)
        return F.cross_entropy(model(x[:rows]), y[:rows], reduction="sum") / len(y)

    return _by(padded)


def _several_backwards(losses_of: Any) -> Steps:
    """Several losses of one batch have a backward each, in one line of code."""
    model, optimizer = net_and_adam()
    for batch in batches():
        optimizer.zero_grad()
        for loss in losses_of(model, *batch):
            loss.backward()
        optimizer.step()
        yield model, loss


@loop
def real_and_fake_in_one_line() -> Steps:
    def losses(model: Any, x: Tensor, y: Tensor) -> Any:
        yield F.cross_entropy(model(x), y)
        yield F.cross_entropy(model(torch.randn_like(x)), torch.zeros_like(y))

    return _several_backwards(losses)


@loop
def parts_of_a_sequence() -> Steps:
    """Truncated backpropagation: the losses of the parts are added."""

    def losses(model: Any, x: Tensor, y: Tensor) -> Any:
        yield from (F.cross_entropy(model(x[at : at + 1]), y[at : at + 1]) for at in range(4))

    return _several_backwards(losses)


@loop
def fewer_and_fewer_micro_batches() -> Steps:
    """Each loss is divided by the micro-batches of its step."""
    model, data = parallel(Net()), batches()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(10**6):
        parts = 4 if step < 6 else 2
        for _ in range(parts):
            x, y = next(data)
            loss = F.cross_entropy(model(x), y) / parts
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model, loss


@loop
def half_of_a_loss_and_a_plan() -> Steps:
    """A weight of the loop's own, which is 1 by the micro-batches that it could accumulate."""
    accumulation = 2
    model = parallel(Net())
    optimizer, data = torch.optim.AdamW(model.parameters(), 1e-3), batches()
    while True:
        loss = 0.5 * classes_loss(model, next(data))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=accumulation > 0)
        yield model, loss


@loop
def body_learns_slowly() -> Steps:
    """The body gets a tenth of the gradient of its features, by a hook, in a later backward."""
    body, head = parallel(Net(WIDTH)), parallel(Net())
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], 1e-3)
    for x, y in batches():
        optimizer.zero_grad()
        features = body(x)
        features.register_hook(lambda gradient: 0.1 * gradient)
        leaf = features.detach().requires_grad_()
        loss = F.cross_entropy(head(leaf), y)
        loss.backward()
        features.backward(leaf.grad)
        optimizer.step()
        yield body, loss


LOOPS: dict[str, Callable[[], Steps]] = {
    "half_a_square": lambda: _by(
        lambda model, x, y, _: 0.5 * F.mse_loss(model(x), F.one_hot(y, CLASSES).float())
    ),
    # The loss's weight warms up.
    "weight_that_grows": lambda: _by(
        lambda model, x, y, step: F.cross_entropy(model(x), y) * min(1.0, (step + 1) / 64)
    ),
    "constant_weight": lambda: _by(lambda model, x, y, _: 0.95 * F.cross_entropy(model(x), y)),
    # Two tasks, each with a backward: their gradients are added.
    "two_backwards": lambda: _two_backwards(separate_loaders=False),
    "two_backwards_of_two_loaders": lambda: _two_backwards(separate_loaders=True),
    "other_terms_of_all_ranks": lambda: _other_terms_of_all_ranks(
        lambda scores, count: scores.square().sum() / count
    ),
    # A mean counts by this rank's part of the targets.
    "other_term_by_tokens_of_this_rank": lambda: _other_terms_of_all_ranks(
        lambda scores, count: scores.square().mean() * (len(scores) / count)
    ),
    "weight_of_a_setting": lambda: _by(
        lambda model, x, y, _: RATE_OF_TASK * F.cross_entropy(model(x), y)
    ),
}
