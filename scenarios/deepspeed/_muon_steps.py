"""Steps of DeepSpeed's Muon over a linear map, beside the update that Muon stands for.

Muon adds to the weights the orthogonal matrix that is nearest to the gradient (with Nesterov's
momentum). Upstream approximates it by an iteration: singular values are 0.7 to 1.2 instead of 1.
Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.muon.original_muon import muon_update
from torch import Tensor, nn

from harness.bugs import api
from scenarios.common import linear
from scenarios.deepspeed import _regression as regression

BATCH, MOMENTUM = 8, 0.95


def train(
    ctx: api.Context, stage: int, micro_batches: int, reduce_scatter: bool | None = None
) -> None:
    """Fit a linear map for some steps at a stage of ZeRO; record each.

    If ``reduce_scatter`` is given, each record also has the facts of ``_updates``.
    """
    p = ctx.params
    torch.manual_seed(ctx.seed)
    if hasattr(torch.compiler, "set_stance"):  # to compile the iteration takes 5 s on a CPU
        torch.compiler.set_stance("force_eager")
    with ctx.phase("init"):
        deepspeed.init_distributed(dist_backend=ctx.lane.backend)
        model = nn.Linear(linear.FEATURES, linear.OUTPUTS, bias=False)
        weight: Any = model.weight
        weight.use_muon = True
        muon = {"type": "Muon", "params": {"lr": p.lr, "momentum": MOMENTUM}}
        zero = {"stage": stage, "reduce_scatter": bool(reduce_scatter)}
        config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 0.0,
            "steps_per_print": 1_000_000,
            "optimizer": muon,
            "zero_allow_untested_optimizer": True,  # up to 0.18.4 Muon is one
            "zero_optimization": regression.BUCKETS | zero,
        }
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=config
        )
    data = _batches(ctx, micro_batches)
    sums = Momentum(), Momentum()
    shape = linear.OUTPUTS, linear.FEATURES
    split = [torch.zeros(shape, device=ctx.device) for _ in range(ctx.world_size + 1)]
    for step in api.each(p.steps):
        before, rows = _weight(engine), next(data)
        gradients = [_gradient(before, *part) for part in rows]
        losses = [regression.step(ctx, engine, part) for part in rows]
        applied = (before - _weight(engine)) / p.lr
        mean = torch.stack(gradients).mean(0)
        right = _orthogonal(sums[0].of(mean))
        each = torch.stack([_orthogonal(sums[1].of(part)) for part in gradients]).sum(0)
        values = torch.linalg.svdvals(applied)
        facts = {}
        if reduce_scatter is not None:
            of_mean, mixed = _updates(before, rows[0], *split)
            facts = {"exact": _apart(applied, of_mean), "mixed": _apart(applied, mixed)}
        ctx.record(
            "step",
            step,
            loss=sum(losses) / len(losses),
            largest=float(values[0]),
            smallest=float(values[-1]),
            muon=_apart(applied, right),
            sgd=_apart(applied, mean),
            each=_apart(applied, each),
            **facts,
        )


class Momentum:
    """Nesterov's momentum, as Muon has it."""

    def __init__(self) -> None:
        self.sum: Any = 0.0

    def of(self, gradient: Tensor) -> Tensor:
        """The gradient with momentum."""
        self.sum = MOMENTUM * self.sum + (1 - MOMENTUM) * gradient
        return (1 - MOMENTUM) * gradient + MOMENTUM * self.sum


def _batches(ctx: api.Context, micro_batches: int) -> Iterator[Any]:
    module = nn.Linear(linear.FEATURES, linear.OUTPUTS)
    data = linear.batches(ctx, module, BATCH, 5.0, 0.1)
    while True:
        yield [next(data) for _ in range(micro_batches)]


def _weight(engine: Any) -> Tensor:
    weight = engine.module.weight
    gathered = deepspeed.zero.GatheredParameters([weight], enabled=hasattr(weight, "ds_id"))
    with gathered:
        return weight.detach().float().clone()


def _gradient(weight: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    weight = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linear.loss(inputs @ weight.T, labels), weight)
    return gradient


def _updates(
    weight: Tensor, rows: linear.Rows, momentum: Tensor, *of_ranks: Tensor
) -> tuple[Tensor, Tensor]:
    """Upstream's update of the mean gradient, and the one of which each rank makes its part. A rank
    has that part of the mean gradient, and its share of it elsewhere."""
    parts = zip(*(part.chunk(len(of_ranks)) for part in rows), strict=True)
    own = [_gradient(weight, *part) for part in parts]
    mean = torch.stack(own).mean(0)
    mixed = torch.empty_like(mean)
    places = torch.arange(mean.numel(), device=mean.device).view_as(mean)
    places = places * len(own) // mean.numel()
    for rank, (gradient, of_rank) in enumerate(zip(own, of_ranks, strict=True)):
        here = places == rank
        part = muon_update(torch.where(here, mean, gradient / len(own)), of_rank)
        mixed[here] = part[here].float()  # before 0.19 it is in bf16
    return muon_update(mean, momentum).float(), mixed


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix whose singular values are all 1."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def _apart(first: Tensor, second: Tensor) -> float:
    """The distance, in parts of the second one's norm."""
    return float((first - second).norm() / second.norm())
