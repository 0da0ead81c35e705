"""Small regressions under DeepSpeed, whose gradients plain torch computes as well.

A linear map that starts at a known distance from its optimum, so that gradients fall from large to
small; and layers of tanh in a pipeline. The loss is half the squared distance, a mean over rows: of
the linear map its Hessian is the inputs' covariance, about one. Imports torch and upstream: import
it from a scenario's ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from harness.spec import Context

FEATURES, OUTPUTS = 16, 4
WIDTH, LAYERS = 16, 4

Rows = tuple[Tensor, Tensor]
"""Inputs [rows, features] and labels [rows, outputs]."""
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance, a mean over rows."""
    return (outputs - labels).square().sum(dim=-1).mean() / 2


def of(module: nn.Module) -> Callable[[Mapping[str, Tensor], Rows], Tensor]:
    """The loss of a module as a function of weights and rows, for ``applied.plainly``."""

    def call(weights: Mapping[str, Tensor], rows: Rows) -> Tensor:
        inputs, labels = (part.to(next(iter(weights.values()))) for part in rows)
        return loss(torch.func.functional_call(module, dict(weights), (inputs,)), labels)

    return call


def engine(ctx: Context, optimizer: Optimizer, **config: Any) -> Any:
    """DeepSpeed's engine over a linear map, data-parallel; ``config`` goes to DeepSpeed."""
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    model = nn.Linear(FEATURES, OUTPUTS)
    made, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        optimizer=optimizer(model.parameters()),
        config={"gradient_accumulation_steps": 1, "steps_per_print": 1_000_000, **config},
    )
    return made


def batches(
    ctx: Context, module: nn.Module, rows: int, distance: float, noise: float
) -> Iterator[Rows]:
    """Global batches of ``rows``, without end and alike on all ranks, of a linear map ``distance``
    from the module's; ``noise`` is the deviation of the labels."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    offset = torch.randn(OUTPUTS, FEATURES, generator=generator)
    # From the weights that are trained: all ranks have rank 0's since initialize.
    start = module.get_parameter("weight").detach().cpu()
    weight = start + distance * offset / offset.norm()
    while True:
        inputs = torch.randn(rows, FEATURES, generator=generator)
        labels = inputs @ weight.T + noise * torch.randn(rows, OUTPUTS, generator=generator)
        yield inputs.to(ctx.device), labels.to(ctx.device)


def layers(seed: int) -> nn.Sequential:
    """Layers of tanh, alike on all ranks."""
    torch.manual_seed(seed)
    inner = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS - 1)]
    return nn.Sequential(*inner, nn.Linear(WIDTH, WIDTH))


def pipeline(ctx: Context, optimizer: Optimizer, **config: Any) -> Any:
    """DeepSpeed's pipeline over the layers of tanh, a stage a rank."""
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    module = deepspeed.PipelineModule(
        list(layers(ctx.seed)),
        topology=PipeModelDataParallelTopology(num_pp=ctx.world_size, num_mp=1, num_dp=1),
        loss_fn=loss,
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    told = {"zero_allow_untested_optimizer": True, "steps_per_print": 1_000_000, **config}
    made, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer(module.parameters()), config=told
    )
    return made


def rows(ctx: Context, micro_batches: int, size: int) -> list[Rows]:
    """Micro-batches of random rows for the layers of tanh."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    parts = torch.randn((micro_batches, 2, size, WIDTH), generator=generator).to(ctx.device)
    return [(inputs.contiguous(), labels.contiguous()) for inputs, labels in parts]


def gathered(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of all stages, on the CPU."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, {name: tensor.cpu() for name, tensor in weights.items()})
    return {name: tensor for part in parts for name, tensor in part.items()}
