"""Loops with models of other shapes than a stack of layers that all train."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
    net_and_adam,
    no_wrapper,
    parallel,
    trained,
    weights_of,
)


def _of(model: Any, **settings: Any) -> Steps:
    model = parallel(model, **settings)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return trained(model, torch.optim.AdamW(weights, 1e-3))


class Adapter(nn.Module):
    """LoRA of a layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(2, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


@loop
def adapters() -> Steps:
    model = Net().requires_grad_(False)
    model.first, model.last = Adapter(model.first), Adapter(model.last)  # type: ignore[assignment]
    return _of(model)


@loop
def adapters_in_bf16() -> Steps:
    model = Net().requires_grad_(False)
    model.first, model.last = Adapter(model.first), Adapter(model.last)  # type: ignore[assignment]
    model = parallel(model.bfloat16())
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], 1e-2)
    data = ((x.bfloat16(), y) for x, y in batches())
    return trained(model, optimizer, data)


@loop
def spectral_norms() -> Steps:
    model = Net()
    nn.utils.parametrizations.spectral_norm(model.first)
    nn.utils.parametrizations.weight_norm(model.last)
    return _of(model)


@loop
def batch_norms() -> Steps:
    """Buffers of each rank's own rows, and an evaluation between steps."""
    model = parallel(
        nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)),
        broadcast_buffers=False,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    evaluation_rows = Table(32, seed=9)
    for step, batch in enumerate(batches()):
        model.train()
        loss = classes_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 7 == 0:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(evaluation_rows.x), evaluation_rows.y)
        yield model, loss


class Experts(nn.Module):
    """A mixture of experts: a batch uses some of them."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.router(x).softmax(1).max(1)
        out = x.new_zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, None])
        return out


class OwnExpert(nn.Module):
    """A layer of this rank alone, beside those that all ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.own(F.gelu(self.shared(x)))))


def _own_expert(is_alike: bool) -> Steps:
    model = OwnExpert()
    if not is_alike:
        nn.init.constant_(model.own.weight, 0.1 * (dist.get_rank() + 1))
    ignored = ["own.weight", "own.bias"]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return _of(model)


class Depth(nn.Module):
    """Stochastic depth: a step leaves out blocks, others on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, CLASSES)
        self.chance = torch.Generator().manual_seed(dist.get_rank())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if float(torch.rand(1, generator=self.chance)) < 0.5:
                x = x + F.gelu(block(x))
        return self.last(x)


@loop
def static_graph_with_checkpoints() -> Steps:
    class Saved(Net):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = x + checkpoint(self.first, x, use_reentrant=False)[:, :WIDTH]
            return super().forward(x)

    return _of(Saved(), static_graph=True, gradient_as_bucket_view=True)


@loop
def unfreezes_later() -> Steps:
    """The first layer begins to train in the middle, with a new wrapper and a new group."""
    model = Net()
    model.first.requires_grad_(False)
    wrapped = parallel(model)
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], 1e-3)
    for step, batch in enumerate(batches()):
        if step == 10:
            model.first.requires_grad_()
            wrapped = parallel(model)
            optimizer.add_param_group({"params": list(model.first.parameters()), "lr": 1e-4})
        if step == 20:
            model.last.requires_grad_(False)
            wrapped = parallel(model)
        optimizer.zero_grad()
        loss = classes_loss(wrapped, batch)
        loss.backward()
        optimizer.step()
        yield wrapped, loss


@loop
def freezes_and_unfreezes() -> Steps:
    """One optimizer has all parameters from the beginning."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    wrapped = parallel(model)
    for step, batch in enumerate(batches()):
        if step % 12 == 6:
            model.first.requires_grad_(step % 24 == 18)
            wrapped = parallel(model)
        optimizer.zero_grad()
        loss = classes_loss(wrapped, batch)
        loss.backward()
        optimizer.step()
        yield wrapped, loss


@loop
def sparse_embedding() -> Steps:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = (
                nn.EmbeddingBag(32, WIDTH, sparse=True),
                nn.Linear(WIDTH, CLASSES),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.words(x.abs().mul(9).long() % 32))

    model = parallel(Words())
    dense = torch.optim.AdamW(model.module.last.parameters(), 1e-3)
    sparse = torch.optim.SparseAdam(list(model.module.words.parameters()), 1e-3)
    for batch in batches():
        loss = classes_loss(model, batch)
        loss.backward()
        for optimizer in (dense, sparse):
            optimizer.step()
            optimizer.zero_grad()
        yield model, loss


@loop
def complex_weights() -> Steps:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.waves = nn.Parameter(torch.randn(WIDTH, 6, dtype=torch.cfloat) * 0.3)
            self.last = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x.to(torch.cfloat) @ self.waves).abs())

    torch.manual_seed(0)
    model = Waves()
    return _of_by_hand(model)


def _of_by_hand(model: Any) -> Steps:
    def reduce() -> None:
        for weight in model.parameters():
            flat = torch.view_as_real(weight.grad) if weight.is_complex() else weight.grad
            dist.all_reduce(flat)
            flat /= dist.get_world_size()

    return trained(model, torch.optim.AdamW(model.parameters(), 1e-3), edit=reduce)


@loop
def average_is_evaluated() -> Steps:
    """The weights are those of a moving average during an evaluation."""
    model = parallel(Net())
    average = torch.optim.swa_utils.AveragedModel(
        model.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )

    def evaluate(step: int, _: Any) -> None:
        if step:
            average.update_parameters(model.module)
        if step % 5 == 4:
            weights = copy.deepcopy(model.module.state_dict())
            model.module.load_state_dict(average.module.state_dict())
            with torch.no_grad():
                classes_loss(model.module, next(batches()))
            model.module.load_state_dict(weights)

    return trained(model, torch.optim.AdamW(model.parameters(), 1e-3), before=evaluate)


@loop
def weights_begin_again() -> Steps:
    """Lottery tickets: weights go back to their first values, and the optimizer is another one."""
    model = parallel(Net())
    initial = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step, batch in enumerate(batches()):
        if step % 15 == 14:
            model.load_state_dict(initial)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer.zero_grad()
        loss = classes_loss(model, batch)
        loss.backward()
        optimizer.step()
        yield model, loss


@loop
def weights_of_rank_0() -> Steps:
    """Ranks begin with other weights, and get those of rank 0 before the first step."""
    torch.manual_seed(dist.get_rank())
    model = Net()
    for weight in model.parameters():
        dist.broadcast(weight.data, 0)
    return _of_by_hand(model)


@loop
def two_models() -> Steps:
    """A policy and its critic train one after the other, each with its optimizer."""
    models = [parallel(Net()), parallel(Net())]
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-3) for one in models]
    for batch in batches():
        losses = [classes_loss(model, batch) for model in models]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield models[0], losses[0]


def _twins(wrap: Any) -> Steps:
    """Two critics have parameters of the same names in one optimizer, and rates of their own."""
    twins = [wrap(Net()), wrap(Net())]
    first, second = map(weights_of, twins)
    groups = [{"params": first, "lr": 1e-2}, {"params": second, "lr": 1e-3}]
    weights, optimizer = [*first, *second], torch.optim.AdamW(groups)

    def loss_of(_: Any, batch: Any) -> Tensor:
        return torch.stack([classes_loss(one, batch) for one in twins]).sum()

    def edit() -> None:
        if wrap is no_wrapper:
            mean_over_ranks(weights)
        nn.utils.clip_grad_norm_(weights, 0.5)

    return trained(twins[0], optimizer, edit=edit, loss_of=loss_of)


class Averaged(nn.Module):
    """Has a model and its average, as ema_pytorch does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online, self.average = model, copy.deepcopy(model).requires_grad_(False)


def _with_average_on_rank_0(wrap: Any) -> Steps:
    model = Net()
    run = wrap(model)
    averaged = Averaged(model) if dist.get_rank() == 0 else None
    optimizer = torch.optim.AdamW(run.parameters(), 1e-3)
    ideal = Net().to("meta")  # of which the loop counts the parameters
    for batch in batches():
        optimizer.zero_grad()
        loss = classes_loss(run, batch)
        loss.backward()
        if wrap is not parallel:
            mean_over_ranks(model.parameters())
        optimizer.step()
        yield (averaged or ideal) and run, loss


def _going_back(change: Any, before_step: Any = lambda model: None) -> Steps:
    """Goes back to a saved state, which the loop then changes."""
    model, optimizer = net_and_adam()
    file = io.BytesIO()

    def before(step: int, _: Any) -> None:
        if step == 6:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        if step == 9:
            file.seek(0)
            state = torch.load(file)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            change(model.module, optimizer)
        before_step(model.module)

    return trained(model, optimizer, before=before)


@loop
def layer_begins_again() -> Steps:
    """After a load one layer begins anew, with its moments."""

    def begin(model: Any, optimizer: Any) -> None:
        nn.init.normal_(model.last.weight.data)
        for state in (optimizer.state[weight] for weight in model.last.parameters()):
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()

    return _going_back(begin)


@loop
def layer_begins_again_without_a_state() -> Steps:
    def begin(model: Any, optimizer: Any) -> None:
        model.last.reset_parameters()
        for weight in model.last.parameters():
            del optimizer.state[weight]

    return _going_back(begin)


@loop
def layer_is_normalized() -> Steps:
    """At the beginning of each step, so also after a load."""

    @torch.no_grad()
    def normalize(model: Any) -> None:
        model.first.weight /= model.first.weight.norm(dim=1, keepdim=True)

    return _going_back(lambda *_: None, normalize)


@loop
def average_has_not_begun() -> Steps:
    """A checkpoint has the average of the weights, which begins later."""
    model = parallel(Net())
    average = torch.optim.swa_utils.AveragedModel(model.module)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def save(step: int, _: Any) -> None:
        if step == 8:
            states = {"model": average.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, io.BytesIO())
        if step > 100:
            average.update_parameters(model.module)

    return trained(model, optimizer, before=save)


class Recomputed(torch.autograd.Function):
    """A checkpoint as diffusion models have it: its backward asks for the gradients of weights."""

    @staticmethod
    def forward(context: Any, function: Any, x: Tensor, *weights: Tensor) -> Tensor:
        context.function, context.x, context.weights = function, x, weights
        with torch.no_grad():
            outputs: Tensor = function(x)
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        x = context.x.detach().requires_grad_()
        with torch.enable_grad():
            outputs = context.function(x)
        return None, *torch.autograd.grad(outputs, [x, *context.weights], gradients)


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = Recomputed.apply(self.first, x, *self.first.parameters())
        return self.last(self.norm(F.gelu(hidden)))


@loop
def checkpointed_by_the_loop() -> Steps:
    return _of(Checkpointed())


@loop
def gradients_of_a_log() -> Steps:
    """Before each backward, the loop asks for the gradients of the last layer."""
    model = parallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        torch.autograd.grad(loss, model.module.last.weight, retain_graph=True)
        loss.backward()
        optimizer.step()
        yield model, loss


LOOPS: dict[str, Callable[[], Steps]] = {
    "mixture_of_experts": lambda: _of(Experts(), find_unused_parameters=True),
    "expert_of_each_rank": lambda: _own_expert(is_alike=False),
    "expert_of_each_rank_that_begins_alike": lambda: _own_expert(is_alike=True),
    "stochastic_depth": lambda: _of(Depth(), find_unused_parameters=True),
    "average_on_rank_0": lambda: _with_average_on_rank_0(parallel),
    "average_on_rank_0_without_a_wrapper": lambda: _with_average_on_rank_0(no_wrapper),
    "twins": lambda: _twins(parallel),
    "twins_without_a_wrapper": lambda: _twins(no_wrapper),
}
