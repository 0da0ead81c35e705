"""A linear map trained with FSDP2 and AdamW. Imports accelerate: import it inside ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from harness.bugs import api
from scenarios.accelerate import _sharded as sharded
from scenarios.common import linear, plain_torch

Local = Mapping[str, Tensor]
"""This rank's parts of the weights, by name."""


class Shadow:
    """torch's AdamW over copies of this rank's weights in another dtype."""

    def __init__(self, local: Local, dtype: torch.dtype, lr: float) -> None:
        self.copies = {n: torch.nn.Parameter(p.to(dtype, copy=True)) for n, p in local.items()}
        self.adamw = torch.optim.AdamW(self.copies.values(), lr=lr, weight_decay=0.0)
        self.lr = lr

    def away(self, before: Local, gradients: Local, after: Local) -> float:
        """Take this step from ``before``; return the distance to ``after``, in learning rates."""
        for name, copy in self.copies.items():
            copy.data.copy_(before[name])
            copy.grad = gradients[name].to(copy.dtype)
        self.adamw.step()
        apart = [(after[n].double() - c.detach().double()).abs() for n, c in self.copies.items()]
        return float(torch.cat([part.flatten() for part in apart]).max()) / self.lr


def train(ctx: api.Context) -> None:
    """Train, and record each step."""
    p = ctx.params
    with ctx.phase("init"):
        accelerator = sharded.accelerator(ctx, "bf16")
        plain = linear.model()
        module = linear.model().to(getattr(torch, p.loaded))
        loaded, whole = _dtype(module.weight), sum(part.numel() for part in module.parameters())
        adamw = torch.optim.AdamW(module.parameters(), lr=p.lr, weight_decay=0.0)
        rows = next(linear.batches(ctx, module, p.rows, distance=3.0, noise=0.1))
        inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in rows)
        model, optimizer = accelerator.prepare(module, adamw)
        weights: dict[str, Any] = dict(model.named_parameters())
        start = _local(weights)
        shadows = [Shadow(start, dtype, p.lr) for dtype in (torch.float32, torch.bfloat16)]
    for step in range(1, p.steps + 1):
        before = _local(weights)
        values = {n: weight.full_tensor().detach().double() for n, weight in weights.items()}
        expected = plain_torch.differentiate(
            plain_torch.loss_of(plain, linear.loss), values, [rows]
        )
        outputs = model(inputs)
        loss = linear.loss(outputs.float(), labels)
        accelerator.backward(loss)
        if step == 1:
            size = sum(part.numel() for part in before.values())
            ctx.record("prepared", loaded=loaded, forward=_dtype(outputs), own=size, whole=whole)
        gradients = {n: weight.grad.to_local().clone() for n, weight in weights.items()}
        share = _share({n: weight.grad.full_tensor() for n, weight in weights.items()}, expected)
        optimizer.step()
        optimizer.zero_grad()
        after = _local(weights)
        fp32, bf16 = (shadow.away(before, gradients, after) for shadow in shadows)
        state = adamw.state[weights["weight"]]["exp_avg"]
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            reference_loss=float(plain_torch.loss_of(plain, linear.loss)(values, (inputs, labels))),
            weights=_dtype(weights["weight"]),
            state=_dtype(state),
            from_fp32=fp32,
            from_bf16=bf16,
            moved=_moved_share(start, after),
            **share,
        )


def _local(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: weight.to_local().detach().clone() for name, weight in weights.items()}


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _share(gradients: Mapping[str, Tensor], expected: plain_torch.Plain) -> dict[str, float]:
    """The ranks' gradient as a multiple of plain torch's, and its part in other directions."""
    plain = torch.cat([gradient.flatten() for gradient in expected.micro[0].values()])
    ours = torch.cat([gradients[name].double().flatten() for name in expected.micro[0]])
    ratio = ours @ plain / (plain @ plain)
    return {"ratio": float(ratio), "off": float((ours - ratio * plain).norm() / ours.norm())}


def _moved_share(start: Local, weights: Local) -> float:
    """The part of this rank's weights that differ from the start."""
    count = sum(int((start[name] != weights[name]).sum()) for name in start)
    return count / sum(part.numel() for part in start.values())
