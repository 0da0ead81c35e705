"""FSDP with HYBRID_SHARD, two replicas and one rank in each shard group: are gradients averaged?

Needs torch from 2.2 on, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.multiprocessing.spawn import spawn


def steps(rank: int) -> Any:
    """By the mesh's shape, what a step of SGD with rate 1 subtracts from the weight on each rank.
    The row of rank 0 has the gradient 1, the row of rank 1 has 3."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29721", rank=rank, world_size=2)
    by_shape: Any = {(1, 2): [None, None], (2, 1): [None, None]}
    for shape, of_ranks in by_shape.items():
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        linear, strategy = torch.nn.Linear(1, 1, bias=False), ShardingStrategy.HYBRID_SHARD
        torch.nn.init.ones_(linear.weight)
        options: Any = {"device_mesh": mesh, "device_id": torch.device("cpu")}
        model = FullyShardedDataParallel(linear, sharding_strategy=strategy, **options)
        model(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        with FullyShardedDataParallel.summon_full_params(model):
            torch.distributed.all_gather_object(of_ranks, 1 - model.weight.item())
    torch.distributed.barrier()
    return by_shape


if __name__ == "__main__":
    rank_0 = spawn(steps, join=False, daemon=True)  # torch before 2.3 needs the name
    print("torch", torch.__version__)
    for (replicas, shards), updates in steps(1).items():
        print(f"{replicas} replicas of {shards} ranks: the ranks apply {updates}, right: 2 and 2")
    print("WRONG: they are not averaged" if updates != [2, 2] else "right: each rank has the mean")
    raise SystemExit(3 if updates != [2, 2] else 0)
