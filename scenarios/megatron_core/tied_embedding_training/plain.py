"""The stages of ``tied_embedding_order`` in plain torch: alone, or beside a pipeline that trains.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from harness.bugs import api
from scenarios.megatron_core import _tied_stages as tied
from scenarios.megatron_core._tied_layout import REPLICAS
from scenarios.megatron_core._tied_trainer import Batch, Trainer
from scenarios.megatron_core.tied_embedding_training import owners

Weights = Sequence[Tensor]
"""The weights of a stage: the tied one, [vocabulary, hidden], then linear ones, [hidden,
hidden]."""


def loss_of(front: Weights, back: Weights, data: Batch) -> Tensor:
    """The mean loss (nats) of the complete model; its two copies of the tied weight may differ."""
    x = tied.blocks(F.embedding(data.tokens, front[0]), [*front[1:], *back[1:]])
    return F.cross_entropy(F.linear(x, back[0]).flatten(0, -2), data.labels.flatten())


def train(ctx: api.Context, shape: tied.Shape, data: Batch, lr: float, steps: int) -> None:
    """Train the model in one process, with one tied weight; record the losses and the weight."""
    initial = tied.weights(shape, ctx.seed)
    weight = nn.Parameter(initial.tied.clone().to(ctx.device))
    linear = [nn.Parameter(each.clone().to(ctx.device)) for each in initial.linear]
    optimizer = torch.optim.AdamW([weight, *linear], lr=lr, weight_decay=0.0)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = loss_of([weight, *linear], [weight], data)
        loss.backward()
        optimizer.step()
        ctx.record("step", step, loss=float(loss))
    ctx.record("weight", values=weight.flatten().tolist())


class Beside:
    """Plain torch on a pipeline's rows: it shows which gradients the owners step with, and how."""

    def __init__(self, ctx: api.Context, trainer: Trainer, data: Batch, lr: float) -> None:
        ddp = trainer.ddp
        self.rank, self.data = ctx.rank, data
        self.weights = [tied.tied_weight(ddp), *ddp.module.linear]
        self.owned = [slice(*tied.layout(ddp, w, sharded=True).owned) for w in self.weights]
        self.stepped = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.stepped, lr=lr, weight_decay=0.0)
        self.before = _of_all(self.weights)

    def facts(self) -> dict[str, Any]:
        """After a step: ``owners.FACTS``. A collective call."""
        stage, replica = divmod(self.rank, REPLICAS)
        losses, gradients = zip(*map(self._plainly, range(REPLICAS)), strict=True)
        tied_gradient, *others = self._owned_gradients()
        part = self.owned[0]
        tied_parts = [each[s][0].flatten()[part] for s in range(tied.STAGES) for each in gradients]
        means = [sum(g) / REPLICAS for g in zip(*(e[stage][1:] for e in gradients), strict=True)]
        expected = [m.flatten()[own] for m, own in zip(means, self.owned[1:], strict=True)]
        facts = {
            "missed": owners.missed(tied_gradient, tied_parts),
            "others_off": max(owners.off(*pair) for pair in zip(others, expected, strict=True)),
            "weights_off": self._weights_off(stage),
            "plain_loss": losses[replica],
        }
        self.before = _of_all(self.weights)
        return facts

    def _plainly(self, replica: int) -> tuple[float, tuple[Weights, Weights]]:
        """A replica's loss, and the gradients of both its stages at the weights before the step."""
        stages = [self.before[replica + s * REPLICAS] for s in range(tied.STAGES)]
        leaves = [[w.clone().requires_grad_() for w in stage] for stage in stages]
        size = self.data.tokens.shape[1] // REPLICAS
        loss = loss_of(leaves[0], leaves[1], self.data.of_replica(replica, size))
        gradients = torch.autograd.grad(loss, [w for stage in leaves for w in stage])
        half = len(leaves[0])
        return float(loss.detach()), (gradients[:half], gradients[half:])

    def _owned_gradients(self) -> list[Tensor]:
        pairs = zip(self.weights, self.owned, strict=True)
        return [weight.main_grad.flatten()[own] for weight, own in pairs]

    def _weights_off(self, stage: int) -> float:
        """How far this rank's weights are from where AdamW moves them with each owner's part."""
        masked = [torch.zeros_like(weight.main_grad) for weight in self.weights]
        for zeros, place, gradient in zip(masked, self.owned, self._owned_gradients(), strict=True):
            zeros.view(-1)[place] = gradient
        everybodys = _of_all(masked)[stage * REPLICAS : (stage + 1) * REPLICAS]
        for parameter, *parts in zip(self.stepped, *everybodys, strict=True):
            parameter.grad = sum(parts[1:], parts[0])
        self.optimizer.step()
        pairs = zip(self.weights, self.stepped, strict=True)
        return max(float((now - then).detach().abs().max()) for now, then in pairs)


def _of_all(tensors: Weights) -> list[Weights]:
    """The tensors of every rank, by rank; their shapes are the same. A collective call."""
    flat = torch.cat([each.detach().flatten() for each in tensors])
    by_rank = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(by_rank, flat)
    sizes = [each.numel() for each in tensors]
    return [
        [part.view_as(each) for part, each in zip(one.split(sizes), tensors, strict=True)]
        for one in by_rank
    ]
