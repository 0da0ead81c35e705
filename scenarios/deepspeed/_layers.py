"""A pipeline of tanh layers under DeepSpeed, whose gradients plain torch computes, too.

Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from harness.bugs import api
from scenarios.common import linear, plain_torch
from scenarios.common.linear import Rows
from scenarios.deepspeed._regression import Optimizer

WIDTH, LAYERS = 16, 4


def layers(seed: int) -> nn.Sequential:
    """Layers of tanh with the same weights on all ranks."""
    torch.manual_seed(seed)
    inner = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS - 1)]
    return nn.Sequential(*inner, nn.Linear(WIDTH, WIDTH))


def pipeline(ctx: api.Context, optimizer: Optimizer, **config: Any) -> Any:
    """DeepSpeed's pipeline over the layers of tanh, one stage on each rank. Nothing is clipped
    unless ``config`` says so."""
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    module = deepspeed.PipelineModule(
        list(layers(ctx.seed)),
        topology=PipeModelDataParallelTopology(num_pp=ctx.world_size, num_mp=1, num_dp=1),
        loss_fn=linear.loss,
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    settings = {"zero_allow_untested_optimizer": True, "steps_per_print": 1_000_000}
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer(module.parameters()),
        config={"gradient_clipping": 0.0, **settings, **config},
    )
    return engine


def rows(ctx: api.Context, micro_batches: int, size: int) -> list[Rows]:
    """Micro-batches of random rows for the layers of tanh."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    parts = torch.randn((micro_batches, 2, size, WIDTH), generator=generator).to(ctx.device)
    return [(inputs.contiguous(), labels.contiguous()) for inputs, labels in parts]


def gathered(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of all stages, on the CPU; a collective call."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {name: tensor.cpu() for name, tensor in weights.items()})
    return {name: tensor for part in parts for name, tensor in part.items()}


class Stage:
    """This rank's stage of the pipeline, beside plain torch over all layers."""

    def __init__(self, ctx: api.Context, engine: Any) -> None:
        self.engine, self.whole = engine, plain_torch.loss_of(layers(ctx.seed), linear.loss)

    def begin(self, micro_batches: list[Rows]) -> None:
        """Call it before a step on these micro-batches, on all ranks at once."""
        self.before = plain_torch.copied(self.engine.module, torch.float64)
        self.plain = plain_torch.differentiate(self.whole, gathered(self.before), micro_batches)

    def facts(self, rate: float) -> dict[str, Any]:
        """``plain_torch.facts`` of the step at this rate, and which stage it is; call it after a
        step."""
        after = plain_torch.copied(self.engine.module)
        stage = {"stage": self.engine.stage_id, "stages": self.engine.num_stages}
        return {**stage, **plain_torch.facts(self.plain, self.before, after, rate)}
