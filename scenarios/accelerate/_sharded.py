"""An Accelerator with FSDP2 on this lane. Imports accelerate: import it inside ``run``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

from harness.bugs import api


def accelerator(ctx: api.Context, precision: str, **plugin: Any) -> Accelerator:
    """accelerate with FSDP2 over this lane's ranks; ``plugin`` goes to its FSDP plugin.

    accelerate ignores the plugin on CPUs, because AcceleratorState chooses FSDP only for GPUs and
    the like. On the CPU lane this function makes that choice, as AcceleratorState does on GPUs.
    """
    fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="no_wrap",
        cpu_ram_efficient_loading=False,
        reshard_after_forward=True,
        **plugin,
    )
    on_cpu = ctx.lane is api.Lane.CPU
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=precision, fsdp_plugin=fsdp_plugin)
    if on_cpu:
        if precision != "no":
            fsdp_plugin.set_mixed_precision(precision)
        accelerator.state.fsdp_plugin = fsdp_plugin
        accelerator.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    if accelerator.num_processes != ctx.world_size or not accelerator.is_fsdp2:
        raise api.Inconclusive(f"FSDP2 on {accelerator.num_processes} of {ctx.world_size} ranks")
    _averages(ctx)
    return accelerator


def _averages(ctx: api.Context) -> None:
    """Raise Inconclusive if a reduce-scatter that should average does something else.

    In torch 2.7.0 gloo sums instead: FSDP2's gradients are then too large.
    """
    parts = torch.full((ctx.world_size,), float(ctx.rank + 1), device=ctx.device)
    mean = torch.zeros(1, device=ctx.device)
    dist.reduce_scatter_tensor(mean, parts, op=dist.ReduceOp.AVG)
    if float(mean) != (ctx.world_size + 1) / 2:
        raise api.Inconclusive(f"reduce-scatter of {ctx.lane.backend} does not average: {mean}")
