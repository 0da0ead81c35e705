"""Steps of DeepSpeed's Muon over a linear map, beside the update that Muon stands for.

Muon adds to the weights the orthogonal matrix that is nearest to the gradient (with Nesterov's
momentum). Upstream approximates it by an iteration: singular values are 0.7 to 1.2 instead of 1.
Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import deepspeed
import torch
from torch import Tensor, nn

from harness.bugs import api
from scenarios.common import linear
from scenarios.deepspeed import _regression as regression

BATCH, MOMENTUM = 8, 0.95


def train(ctx: api.Context, stage: int, micro_batches: int) -> None:
    """Fit a linear map for some steps at a stage of ZeRO; record each."""
    p = ctx.params
    torch.manual_seed(ctx.seed)
    if hasattr(torch.compiler, "set_stance"):  # to compile the iteration takes 5 s on a CPU
        torch.compiler.set_stance("force_eager")
    with ctx.phase("init"):
        deepspeed.init_distributed(dist_backend=ctx.lane.backend)
        model = nn.Linear(linear.FEATURES, linear.OUTPUTS, bias=False)
        model.weight.use_muon = True
        muon = {"type": "Muon", "params": {"lr": p.lr, "momentum": MOMENTUM}}
        config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 0.0,
            "steps_per_print": 1_000_000,
            "optimizer": muon,
            "zero_optimization": regression.BUCKETS | {"stage": stage, "reduce_scatter": False},
        }
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=config
        )
    data = _batches(ctx, micro_batches)
    sums = Momentum(), Momentum()
    for step in api.each(p.steps):
        before, rows = _weight(engine), next(data)
        gradients = [_gradient(before, *part) for part in rows]
        losses = [regression.step(ctx, engine, part) for part in rows]
        applied = (before - _weight(engine)) / p.lr
        mean = torch.stack(gradients).mean(0)
        right = _orthogonal(sums[0].of(mean))
        each = sum(_orthogonal(sums[1].of(part)) for part in gradients)
        values = torch.linalg.svdvals(applied)
        ctx.record(
            "step",
            step,
            loss=sum(losses) / len(losses),
            largest=float(values[0]),
            smallest=float(values[-1]),
            muon=_apart(applied, right),
            sgd=_apart(applied, mean),
            each=_apart(applied, each),
        )


class Momentum:
    """Nesterov's momentum, as Muon has it."""

    def __init__(self) -> None:
        self.sum: Any = 0.0

    def of(self, gradient: Tensor) -> Tensor:
        """The gradient with momentum."""
        self.sum = MOMENTUM * self.sum + (1 - MOMENTUM) * gradient
        return (1 - MOMENTUM) * gradient + MOMENTUM * self.sum


def _batches(ctx: api.Context, micro_batches: int) -> Iterable[Any]:
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


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix whose singular values are all 1."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def _apart(first: Tensor, second: Tensor) -> float:
    """The distance, in parts of the second one's norm."""
    return float((first - second).norm() / second.norm())
