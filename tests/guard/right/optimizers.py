"""Loops with optimizers that torch does not have, or in forms that few use."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
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
    mean_over_ranks,
    parallel,
    trained,
)


def _by(make: Any, wrap: Any = parallel, **settings: Any) -> Steps:
    model = wrap(Net(), **settings)
    return trained(model, make(list(model.parameters())))


@loop
def other_formulas() -> Steps:
    model = parallel(Net())
    kinds = [torch.optim.NAdam, torch.optim.Adagrad, torch.optim.Adafactor, torch.optim.ASGD]
    optimizers = [
        kind([weight], 1e-3) for kind, weight in zip(kinds, model.parameters(), strict=False)
    ]
    optimizers.append(torch.optim.Adadelta(list(model.parameters())[len(kinds) :], 1e-3))
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield model, loss


@loop
def muon() -> Steps:
    """Matrices by Muon, the others by AdamW."""
    model = parallel(Net())
    weights = list(model.parameters())
    matrices = torch.optim.Muon([weight for weight in weights if weight.ndim == 2], 1e-2)
    others = torch.optim.AdamW([weight for weight in weights if weight.ndim < 2], 1e-3)
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        matrices.step()
        others.step()
        model.zero_grad()
        yield model, loss


@loop
def one_of_rank_0_comes_first() -> Steps:
    """Rank 0 alone fits a probe between the epochs, so its optimizers have other numbers."""
    probe, model, data = nn.Linear(WIDTH, CLASSES), parallel(Net()), batches()
    rows = Table()
    own = torch.optim.SGD(probe.parameters(), 0.01) if dist.get_rank() == 0 else None
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    while True:
        yield from trained(model, optimizer, itertools.islice(data, 20))
        if own is not None:
            own.zero_grad()
            classes_loss(probe, (rows.x, rows.y)).backward()
            own.step()


@loop
def optimizer_without_parameters() -> Steps:
    """One optimizer for each kind of parameter, of which this model has only one."""
    model = Net()
    weights = list(model.parameters())
    none: dict[str, Any] = {"params": []}
    embeddings = torch.optim.AdamW([none], 1e-3)
    others = torch.optim.AdamW([{"params": weights}, {**none}], 1e-3)
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        mean_over_ranks(weights)
        for optimizer in (embeddings, others):
            optimizer.step()
            optimizer.zero_grad()
        yield model, loss


class SGD(torch.optim.Optimizer):
    """The user's own, with torch's name: the rate is within the momentum, as in Caffe."""

    def __init__(self, params: Any, lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                velocity = self.state[weight].setdefault("velocity", torch.zeros_like(weight))
                velocity.mul_(group["momentum"]).add_(weight.grad, alpha=group["lr"])
                weight.sub_(velocity)


class AdamW(torch.optim.AdamW):
    """The user's own: it centralizes gradients, and steps as torch's does."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.ndim > 1:
                    weight.grad -= weight.grad.mean(dim=1, keepdim=True)
        return super().step(closure)


class Adam(torch.optim.Optimizer):
    """The user's own, with states in 8 bits."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                for name, beta, value in zip(
                    ("state1", "state2"),
                    group["betas"],
                    (weight.grad, weight.grad.square()),
                    strict=True,
                ):
                    rounded, scale = state.get(
                        name, (torch.zeros_like(weight, dtype=torch.int8), 1.0)
                    )
                    mean = beta * rounded * scale + (1 - beta) * value
                    scale = float(mean.abs().max()) / 127 or 1.0
                    state[name] = (mean / scale).round().to(torch.int8), scale
                first_moment, square = (
                    (rounded * scale) for rounded, scale in (state["state1"], state["state2"])
                )
                weight.sub_(first_moment / (square.sqrt() + 1e-3), alpha=group["lr"])


class Blocks(torch.optim.Optimizer):
    """Moves one of its parameters in a step, and another one after sixty steps."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        weights = self.param_groups[0]["params"]
        weight = weights[self.count // 60 % len(weights)]
        weight.sub_(weight.grad.sign(), alpha=self.param_groups[0]["lr"])
        self.count += 1


class Lookahead(torch.optim.Optimizer):
    """Each five steps, the weights go half the way back."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.count = inner, 0
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, {}
        self.slow = [[w.detach().clone() for w in g["params"]] for g in self.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step(closure)
        self.count += 1
        if self.count % 5 == 0:
            for group, slow_weights in zip(self.param_groups, self.slow, strict=True):
                for weight, slow in zip(group["params"], slow_weights, strict=True):
                    slow.lerp_(weight, 0.5)
                    weight.copy_(slow)


@loop
def lookahead_without_a_wrapper_of_the_model() -> Steps:
    model = Net()
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), 1e-3))
    return trained(model, optimizer, edit=lambda: mean_over_ranks(model.parameters()))


class ScheduleFree(torch.optim.Optimizer):
    """The weights of the gradients are between those that are moved and their mean."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "count": 0, "training": True})

    @torch.no_grad()
    def swap(self, training: bool) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if "moved" in self.state[weight] and group["training"] != training:
                    weight.lerp_(self.state[weight]["moved"], 0.1 if training else 1 - 1 / 0.9)
            group["training"] = training

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] += 1
            for weight in group["params"]:
                fast_weight = self.state[weight].setdefault("moved", weight.clone())
                weight.lerp_(fast_weight, 1 / group["count"])
                fast_weight.sub_(weight.grad, alpha=group["lr"])


@loop
def schedule_free() -> Steps:
    model = parallel(Net())
    optimizer = ScheduleFree(model.parameters(), 0.05)
    for step, batch in enumerate(batches()):
        optimizer.swap(training=True)
        loss = classes_loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 5:
            optimizer.swap(training=False)
            with torch.no_grad():
                classes_loss(model.module, batch)
        yield model, loss


@loop
def hooks_of_an_optimizer() -> Steps:
    """Its own hooks clip values before a step, and weights after it."""

    def make(weights: Any) -> Any:
        optimizer = torch.optim.AdamW(weights, 1e-2)
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(weights, 1e-3))

        def clamp(*_: Any) -> None:
            with torch.no_grad():
                for weight in weights:
                    weight.clamp_(-0.2, 0.2)

        optimizer.register_step_post_hook(clamp)
        return optimizer

    return _by(make)


@loop
def limited_memory() -> Steps:
    """LBFGS with a line search calls its closure several times."""
    model = parallel(Net())
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=3)
    for batch in batches(rows=16):

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = classes_loss(model, batch)
            loss.backward()
            return loss

        yield model, optimizer.step(closure)


@loop
def closure_of_two_losses() -> Steps:
    model = parallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = batches()
    while True:
        pair = next(data), next(data)

        def closure(pair: Any = pair) -> Any:
            optimizer.zero_grad()
            with model.no_sync():
                (classes_loss(model, pair[0]) / 2).backward()
            loss = classes_loss(model, pair[1]) / 2
            loss.backward()
            return loss

        yield model, optimizer.step(closure)


@loop
def steps_in_the_backward() -> Steps:
    """Each parameter has an optimizer that steps as soon as its gradient is there."""
    model = Net()
    optimizers = {id(w): torch.optim.AdamW([w], 1e-3) for w in model.parameters()}

    def step(weight: Any) -> None:
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
        optimizers[id(weight)].step()
        optimizers[id(weight)].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        yield model, loss


@loop
def master_copies() -> Steps:
    """Weights in bf16, and an optimizer of copies in fp32, as in apex."""
    model = parallel(Net().bfloat16())
    weights = list(model.parameters())
    masters = [weight.detach().float().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(masters, 1e-4)
    for x, y in batches():
        loss = nn.functional.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for weight, master in zip(weights, masters, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(weights, masters, strict=True):
                weight.copy_(master)
        yield model, loss


@loop
def decay_by_hand() -> Steps:
    """Weights shrink before each step, outside the optimizer, and are clipped after it."""
    model = parallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for batch in batches():
        optimizer.zero_grad()
        loss = classes_loss(model, batch)
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 - 1e-3)
        optimizer.step()
        with torch.no_grad():
            model.module.last.weight.clamp_(-0.3, 0.3)
        yield model, loss


def _population(take_over: Any = lambda state: None) -> Steps:
    """Each few steps an optimizer with another rate takes over the state."""
    model = parallel(Net())
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-3)
    for step, batch in enumerate(batches()):
        optimizer.zero_grad()
        loss = classes_loss(model, batch)
        loss.backward()
        optimizer.step()
        if step % 20 == 7:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            optimizer.load_state_dict(state)
            take_over(optimizer.state)
        yield model, loss


@loop
def moments_begin_again() -> Steps:
    """The next optimizer takes over the count of steps, but not the moments."""

    def clear(states: Any) -> None:
        for moments in states.values():
            moments["exp_avg"].zero_()
            moments["exp_avg_sq"].zero_()

    return _population(clear)


LOOPS: dict[str, Callable[[], Steps]] = {
    "foreach": lambda: _by(
        lambda weights: torch.optim.AdamW(weights, 1e-3, foreach=True, amsgrad=True)
    ),
    "fused_descent": lambda: _by(
        lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, dampening=0.1, fused=True)
    ),
    "rate_is_a_tensor": lambda: _by(lambda weights: torch.optim.Adam(weights, torch.tensor(1e-3))),
    "ascent": lambda: _by(
        lambda weights: torch.optim.SGD(weights, 1e-4, momentum=0.9, maximize=True)
    ),
    # Rprop does not move a weight whose gradient changes its sign.
    "by_signs": lambda: _by(lambda weights: torch.optim.Rprop(weights, 1e-3)),
    "own_descent_with_a_name_of_torch": lambda: _by(lambda weights: SGD(weights, 0.05, 0.9)),
    "own_subclass_with_a_name_of_torch": lambda: _by(lambda weights: AdamW(weights, 1e-3)),
    "states_in_8_bits": lambda: _by(lambda weights: Adam(weights, 1e-3)),
    "block_by_block": lambda: _by(lambda weights: Blocks(weights, 1e-3)),
    "lookahead": lambda: _by(lambda weights: Lookahead(torch.optim.AdamW(weights, 1e-3))),
    "copies_vote": lambda: _population(),
}
