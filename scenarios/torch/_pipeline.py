"""A pipeline of small blocks in torch.distributed.pipelining. Imports torch: import it in ``run``.

All ranks hold the complete model as a reference, and refresh its weights from the stages' owners.
So plain torch can compute the gradient of the complete model on each rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from harness.bugs import api
from scenarios.common import linear

FEATURES = 8

SINGLE = ("GPipe", "1F1B")
"""Schedules with one stage on each rank; all others have two."""

Rows = tuple[Tensor, Tensor]


class Block(nn.Module):
    """One stage: a linear map and a tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(FEATURES, FEATURES)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.map(inputs).tanh()
        return outputs


def rows(ctx: api.Context, count: int) -> Rows:
    """Inputs and labels; each call goes on in the sequence of torch's generator."""
    inputs, labels = torch.randn(count, FEATURES), torch.randn(count, FEATURES)
    return inputs.to(ctx.device), labels.to(ctx.device)


class Pipeline:
    """The stages of this rank under a schedule, and the complete model for reference."""

    def __init__(
        self,
        ctx: api.Context,
        schedule: str,
        micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor] = linear.loss,
        block: Callable[[], nn.Module] = Block,
        wrap: Callable[[nn.Module], nn.Module] = lambda block: block,
        group: Any = None,
        **options: Any,
    ) -> None:
        """``group`` has the ranks of this pipeline: all by default. ``wrap`` is for data
        parallelism; ``options`` are the schedule's."""
        count = dist.get_world_size(group)
        self.micro_batches = micro_batches
        self.group, self.owners = group, _owners(schedule, count)
        self.ranks: Any = group or dist.group.WORLD
        self.whole = nn.Sequential(*(block() for _ in self.owners)).to(ctx.device)
        numbers = [n for n, rank in enumerate(self.owners) if rank == dist.get_rank(group)]
        self.blocks = {n: copy.deepcopy(self.whole[n]) for n in numbers}
        shapes = _shapes(torch.empty(ctx.params.rows, FEATURES, device=ctx.device))
        stages = [
            PipelineStage(wrap(b), n, len(self.owners), ctx.device, group=group, **shapes)
            for n, b in self.blocks.items()
        ]
        kind: Any = getattr(schedules, f"Schedule{schedule}")
        staged = stages[0] if schedule in SINGLE else stages
        self.schedule = kind(staged, micro_batches, loss_fn=loss, **options)
        self.first, self.last = 0 in numbers, len(self.owners) - 1 in numbers

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's stages."""
        return [weight for block in self.blocks.values() for weight in block.parameters()]

    @property
    def halves(self) -> int:
        """How many of this rank's backward passes compute gradients of weights alone."""
        actions = self.schedule.pipeline_order[dist.get_rank(self.group)]
        kinds = [action.computation_type.name for action in actions if action is not None]
        return sum(kind.endswith("WEIGHT") for kind in kinds)  # of 2.5: without BACKWARD_

    def step(self, batch: Rows) -> float | None:
        """Run the schedule on a batch; returns the mean loss on the last stage's rank."""
        losses: list[Tensor] = []
        inputs = (batch[0],) if self.first else ()
        keywords: dict[str, Any] = {"target": batch[1], "losses": losses} if self.last else {}
        self.schedule.step(*inputs, **keywords)
        if not hasattr(self.schedule, "scale_grads"):  # before torch 2.7 the caller has to divide
            for weight in self.parameters():
                if weight.grad is not None:
                    weight.grad /= self.micro_batches
        return float(torch.stack(losses).mean()) if losses else None

    def weights(self) -> dict[str, Tensor]:
        """A copy of all stages' weights, from their owners; a collective call."""
        for n, rank in enumerate(self.owners):
            source = self.blocks.get(n, self.whole[n])
            for weight, origin in zip(self.whole[n].parameters(), source.parameters(), strict=True):
                weight.data.copy_(origin.data)
                dist.broadcast(weight.data, dist.get_global_rank(self.ranks, rank), self.ranks)
        return {name: w.detach().clone() for name, w in self.whole.named_parameters()}

    def of_rank(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of this rank's stages."""
        return {name: w for n in self.blocks for name, w in of_stage(n, weights).items()}


def of_stage(stage: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that belong to one stage."""
    return {name: weight for name, weight in weights.items() if name.startswith(f"{stage}.")}


def _shapes(example: Tensor) -> dict[str, Any]:
    """What a stage gets and returns, for torch 2.5, whose stages do not find it out."""
    needed = signature(PipelineStage).parameters["input_args"].default is Parameter.empty
    return {"input_args": example, "output_args": example} if needed else {}


def _owners(schedule: str, ranks: int) -> Sequence[int]:
    """The rank of each stage."""
    once = list(range(ranks))
    if schedule in SINGLE:
        return once
    return once + (once[::-1] if schedule == "ZBVZeroBubble" else once)
