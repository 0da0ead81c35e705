"""One step of an optimizer that gives each rank its part of the fp32 weights to update.

If a rank uses its own gradient where it should use the mean over the ranks, its part of the weights
gets a wrong update. All ranks then gather all parts, so they stay equal. Imports torch and
DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor

from harness.bugs import api
from scenarios.common import linear, plain_torch
from scenarios.common.plain_torch import Plain
from scenarios.deepspeed import _exact as exact
from scenarios.deepspeed import _regression as regression

BATCH = 4
"""Rows of a rank's micro-batch."""


def step(
    ctx: api.Context,
    micro_batches: int,
    averaged: int,
    lr: float,
    optimizer: str = "BF16_Optimizer",
    **config: Any,
) -> None:
    """Train a linear map for a step of SGD under DeepSpeed's ``optimizer``, and record it.

    ``local`` compares what was applied with a gradient in which only the first ``averaged``
    micro-batches are averaged over the ranks; for the others, each rank uses its own gradient. If
    ``averaged`` is above 0, ``own`` compares it with each rank's own gradient of all micro-batches.
    """
    ranks = range(ctx.world_size)
    torch.manual_seed(ctx.seed)
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            regression.sgd(lr),
            exact.linear_map(),
            train_micro_batch_size_per_gpu=BATCH,
            gradient_accumulation_steps=micro_batches,
            zero_allow_untested_optimizer=True,
            data_types={"grad_accum_dtype": "fp32"},
            **{"bf16": {"enabled": True}, **config},
        )
    taken = type(engine.optimizer).__name__
    if taken != optimizer:
        raise api.Inconclusive(f"DeepSpeed took another optimizer: {taken}")
    data = exact.batches(ctx, ctx.world_size * BATCH)
    rows = [next(data) for _ in range(micro_batches)]
    before = masters(engine)
    loss = plain_torch.loss_of(engine.module, linear.loss)
    whole = plain_torch.differentiate(loss, before, rows)
    by_rank = [
        plain_torch.differentiate(
            loss, before, [tuple(t.chunk(len(ranks))[rank] for t in row) for row in rows]
        )
        for rank in ranks
    ]
    losses = [regression.step(ctx, engine, part) for part in rows]
    after = masters(engine)

    def mixed(averaged: int) -> api.Facts:
        micro = [_mixed(whole, by_rank, averaged)]
        return plain_torch.facts(Plain(whole.losses, micro), before, after, lr)

    ctx.record(
        "step",
        1,
        loss=sum(losses) / len(losses),
        parted=any(
            not torch.equal(by_rank[0].micro[0][n], plain.micro[0][n])
            for plain in by_rank
            for n in before
        ),
        **plain_torch.facts(whole, before, after, lr),
        local=mixed(averaged),
        **({"own": mixed(0)} if averaged else {}),
    )


def masters(engine: Any) -> dict[str, Tensor]:
    """A copy of the fp32 masters of all ranks, by name; a collective call."""
    return {n: safe_get_full_fp32_param(p).clone() for n, p in engine.module.named_parameters()}


def _mixed(whole: Plain, by_rank: list[Plain], averaged: int) -> dict[str, Tensor]:
    """The gradient of each rank's part; after ``averaged`` micro-batches the rank uses its own."""
    names = list(whole.micro[0])

    def flat(micro: Any) -> Tensor:
        return torch.cat([micro[name].flatten() for name in names])

    parts = []
    for rank, plain in enumerate(by_rank):
        gradients = [*whole.micro[:averaged], *plain.micro[averaged:]]
        mean = torch.stack([flat(micro) for micro in gradients]).mean(0)
        parts.append(mean.chunk(len(by_rank))[rank])
    sizes = [whole.micro[0][name].numel() for name in names]
    parts_of_weights = torch.cat(parts).split(sizes)
    return {n: f.view_as(whole.micro[0][n]) for n, f in zip(names, parts_of_weights, strict=True)}
