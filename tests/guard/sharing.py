"""How the ranks of a tiny training share the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local_sgd

from tests.guard.word_models import Block, Model

if TYPE_CHECKING:
    from tests.guard.options import Has


def ddp(model: Model, has: Has) -> nn.Module:
    wrapped = nn.parallel.DistributedDataParallel(
        model,
        find_unused_parameters=has("unused", "skips_block"),
        static_graph=has("static_graph"),
        gradient_as_bucket_view=has("bucket_view"),
    )
    if has("post_local_sgd"):
        alone = dist.new_subgroups(1)[0]
        state = post_local_sgd.PostLocalSGDState(None, alone, start_localSGD_iter=6)
        wrapped.register_comm_hook(state, post_local_sgd.post_localSGD_hook)
    return wrapped


def by_hand(model: Model, has: Has) -> nn.Module:
    return model  # see ``reduce_by_hand``


def mesh_of(**sizes: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def fsdp2(model: Model, has: Has, **settings: Any) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard

    if has("mixed"):
        settings["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if has("columns"):
        settings["shard_placement_fn"] = lambda p: Shard(p.ndim - 1)
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    if has("summed", "sums_rightly"):
        for part in (*model.blocks, model):
            part.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            part.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return model


def hsdp(model: Model, has: Has) -> nn.Module:
    ranks = dist.get_world_size()
    shards = max(1, ranks // 2)
    return fsdp2(model, has, mesh=mesh_of(copies=ranks // shards, shards=shards))


def fsdp1(model: Model, has: Has) -> nn.Module:
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
        wrap,
    )

    ranks = dist.get_world_size()
    settings: dict[str, Any] = {
        "use_orig_params": not has("flat"),
        "device_id": torch.device("cpu"),
        "sharding_strategy": ShardingStrategy.FULL_SHARD,
    }
    for word in ("shard_grad_op", "no_shard", "hybrid_shard"):
        if has(word):
            settings["sharding_strategy"] = ShardingStrategy[word.upper()]
    if has("hybrid_shard"):
        settings["device_mesh"] = mesh_of(copies=2, shards=ranks // 2)
    if has("mixed"):
        settings["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
    settings["auto_wrap_policy"] = wrap.ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, **settings)


def tensor_parallel(model: Model, has: Has, mesh: Any = None) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard, parallel

    mesh = mesh or mesh_of(parts=dist.get_world_size())
    plan: dict[str, Any] = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    if has("sequence_parallel"):
        plan = {
            "": parallel.PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)
            ),
            "norm": parallel.SequenceParallel(use_local_output=False),
            "up": parallel.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "down": parallel.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    for block in model.blocks:
        if has("sequence_parallel"):
            block.register_forward_hook(lambda _m, _a, out: out.full_tensor())
        parallel.parallelize_module(block, mesh, plan)
    if has("split_words"):  # each rank gets the whole gradient, and steps its part of it
        words = parallel.RowwiseParallel(input_layouts=Replicate())
        parallel.parallelize_module(model, mesh, {"words": words})
    return model


def fsdp2_tensor_parallel(model: Model, has: Has) -> nn.Module:
    mesh = mesh_of(copies=dist.get_world_size() // 2, parts=2)
    tensor_parallel(model, has, mesh["parts"])
    return fsdp2(model, has, mesh=mesh["copies"])


class Stage(nn.Module):
    """A part of the model, on a rank of a pipeline."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


STAGES = 2
"""Ranks of a pipeline."""


def pipeline(model: Model, has: Has) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    copies = dist.get_world_size() // STAGES
    mesh = mesh_of(copies=copies, stages=STAGES)
    layers: list[nn.Module] = [model.words, *model.blocks, model.out]
    count = len(layers) if has("interleaved") else STAGES
    size = len(layers) // count
    place = mesh.get_local_rank("stages")
    stages = nn.ModuleList(
        Stage(layers[n * size : (n + 1) * size]) for n in range(place, count, STAGES)
    )
    if copies > 1 and has("sharded_stages"):
        for stage in stages:
            fully_shard(stage, mesh=mesh["copies"])
    stages.mesh, stages.count = mesh, count  # type: ignore[assignment]
    return stages


def stages_by_hand(model: Model, has: Has) -> nn.Module:
    torch.manual_seed(0)
    block = Block(has)  # each rank's has the same weights at first
    ends = [model.words, nn.Identity(), nn.Identity(), model.out]
    return nn.Sequential(*[*ends[:2], block] if dist.get_rank() == 0 else [block, *ends[2:]])


def rows_of(has: Has) -> tuple[int, int]:
    """Of how many readers of rows this rank is which one: those of one tensor-parallel group read
    the same ones."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if has("tensor_parallel", "stages_by_hand"):
        return 1, 0
    if has("fsdp2_tensor_parallel", "pipeline"):
        return max(1, ranks // 2), rank // 2
    return ranks, rank


PARALLEL: dict[str, Callable[[Model, Has], nn.Module]] = {
    "ddp": ddp,
    "by_hand": by_hand,
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "fsdp1": fsdp1,
    "tensor_parallel": tensor_parallel,
    "fsdp2_tensor_parallel": fsdp2_tensor_parallel,
    "pipeline": pipeline,
    "stages_by_hand": stages_by_hand,
}
