"""A linear map under DeepSpeed, data-parallel.

Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import deepspeed
import torch
from torch import nn

from harness.bugs import api
from scenarios.common import linear
from scenarios.common.linear import Rows

BUCKETS = {"reduce_bucket_size": 10**6, "allgather_bucket_size": 10**6}
"""Elements of a bucket. ZeRO divides a complete bucket at each step: with the default of 5e8 that
takes 1 to 3 s on a CPU."""

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def sgd(lr: float) -> Optimizer:
    """SGD at a constant rate."""
    return partial(torch.optim.SGD, lr=lr)


def engine(
    ctx: api.Context, optimizer: Optimizer, model: nn.Module | None = None, **config: Any
) -> Any:
    """DeepSpeed's engine over a model, data-parallel; ``config`` goes to DeepSpeed.

    The model is a linear map unless one is given. Nothing is clipped unless ``config`` says so.
    """
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    model = model or linear.model()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        optimizer=optimizer(model.parameters()),
        config={
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "steps_per_print": 1_000_000,
            **config,
            "zero_optimization": BUCKETS | config.get("zero_optimization", {}),
        },
    )
    return engine


def step(ctx: api.Context, engine: Any, rows: Rows) -> float:
    """Train one step on this rank's part of a global batch; returns the loss of that part."""
    inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in rows)
    loss = linear.loss(engine(inputs.to(next(engine.module.parameters()).dtype)), labels)
    engine.backward(loss)
    engine.step()
    return float(loss.detach())
