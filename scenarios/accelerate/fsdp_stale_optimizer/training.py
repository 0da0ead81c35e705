"""A training under accelerate's FSDP1, beside plain torch. Import it inside ``run``."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FlatParameter

from harness.bugs import api

FEATURES = 4


def accelerator(ctx: api.Context) -> Accelerator:
    """accelerate with FSDP1 over this lane's ranks.

    accelerate chooses FSDP only for GPUs and the like. On the CPU lane this function makes that
    choice, and names the device without an index, because FSDP1 refuses ``cpu:0``.
    """
    # Old releases ask for a GPU to broadcast the weights. Here all ranks make equal ones.
    os.environ["FSDP_SYNC_MODULE_STATES"] = "False"
    plugin = FullyShardedDataParallelPlugin(use_orig_params=ctx.params.use_orig_params)
    on_cpu = ctx.lane is api.Lane.CPU
    accelerator = Accelerator(cpu=on_cpu, fsdp_plugin=plugin)
    if on_cpu:
        accelerator.state.fsdp_plugin = plugin
        accelerator.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        PartialState._shared_state["device"] = torch.device("cpu")
        accelerator.state.device = torch.device("cpu")
    if (accelerator.num_processes, accelerator.distributed_type) != (
        ctx.world_size,
        DistributedType.FSDP,
    ):
        raise api.Inconclusive(f"{accelerator.distributed_type} on {accelerator.num_processes}")
    return accelerator


def train(ctx: api.Context) -> None:
    """Record each step of the model under FSDP and of plain torch, which starts equal."""
    accelerated, p = accelerator(ctx), ctx.params
    torch.manual_seed(ctx.seed)
    model, reference = (mlp().to(ctx.device) for _ in range(2))
    reference.load_state_dict(model.state_dict())
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=p.lr)
    if p.optimizer_first:
        plain_optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
        model, optimizer = accelerated.prepare(model, plain_optimizer)
    else:
        model = accelerated.prepare(model)
        optimizer = accelerated.prepare(torch.optim.SGD(model.parameters(), lr=p.lr))
    weights = list(model.parameters())
    trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    ctx.record(
        "prepared",
        flat=any(isinstance(weight, FlatParameter) for weight in weights),
        stale=not any(id(weight) in trained for weight in weights),
    )
    share = slice(ctx.rank * p.rows, (ctx.rank + 1) * p.rows)
    for step in range(1, p.steps + 1):
        rows = torch.randn(ctx.world_size * p.rows, FEATURES).to(ctx.device)
        before, reference_before = copies(weights), copies(reference.parameters())
        optimizer.zero_grad()
        loss = error(model, rows[share])
        accelerated.backward(loss)
        gradient = size(weight.grad for weight in weights if weight.grad is not None)
        optimizer.step()
        reference_optimizer.zero_grad()
        reference_loss = error(reference, rows)
        reference_loss.backward()
        reference_optimizer.step()
        distance = size(now.detach() - old for now, old in zip(weights, before, strict=True))
        reference_moved = torch.cat(
            [
                (now.detach() - old).flatten()
                for now, old in zip(reference.parameters(), reference_before, strict=True)
            ]
        ).norm()
        ctx.record(
            "step",
            step,
            loss=total(loss.detach()) / ctx.world_size,
            reference_loss=float(reference_loss),
            gradient=gradient,
            moved=distance,
            reference_moved=float(reference_moved),
        )


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def error(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """The mean squared error of a model that should sum the features."""
    result: torch.Tensor = (model(rows) - rows.sum(-1, keepdim=True)).square().mean()
    return result


def copies(weights: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in weights]


def size(shards: Iterable[torch.Tensor]) -> float:
    """The norm of tensors of which each rank has a part."""
    squares = [shard.double().square().sum() for shard in shards]
    return total(torch.stack(squares).sum()) ** 0.5 if squares else total(torch.zeros(())) ** 0.5


def total(value: torch.Tensor) -> float:
    """The sum over all ranks."""
    summed = value.clone().double()
    dist.all_reduce(summed)
    return float(summed)
