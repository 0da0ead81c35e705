"""FSDP1's HYBRID_SHARD over a mesh of (n, 1) never averages the gradients of its n replicas.

HYBRID_SHARD shards within a group, usually a node, and replicates between groups. With one rank in
each sharding group, nothing is left to shard and only the replicas' gradients must be averaged.
This happens if a configuration for several GPUs per node is used with one GPU per node. FSDP warns
that it switches to NO_SHARD "since the world size is 1", which sounds harmless. From then on each
rank trains a model of its own, with gradients that are n times too small. The checkpoint of rank 0
has seen the data of rank 0 alone.

Root cause: FSDP replaces any strategy by NO_SHARD if the sharding group has one rank. NO_SHARD
sums gradients over that same group, that is over one rank. The group of the replicas, which
HYBRID_SHARD sums over, is forgotten. Only its size still counts: each gradient is divided by n.

torch 2.15.0 still has the bug: as released, it is the buggy variant. Upstream plans no fix for
FSDP1. The fixed variant is our remedy: the strategy is kept if there are several replicas.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import unreduced

if TYPE_CHECKING:
    from torch import Tensor


def unless_replicated(function: Any) -> api.Edits:
    """The test for a world of one rank also demands that there is no other replica."""
    import libcst as cst
    import libcst.matchers as m

    template = "and not (sharding_strategy in HYBRID_SHARDING_STRATEGIES and {})"
    pattern = m.Comparison(
        m.Attribute(attr=m.Name("world_size")), [m.ComparisonTarget(m.Equal(), m.Integer("1"))]
    )
    for test in m.findall(function, pattern):
        code = cst.Module([]).code_for_node(cst.ensure_type(test, cst.Comparison))
        replicas = template.format("state._inter_node_pg.size() > 1")
        yield test, cst.parse_expression(f"({code} {replicas})")


def own_divided(step: unreduced.Step, records: api.Records) -> bool:
    """Each rank applied its own gradient, divided by the number of ranks, instead of their mean."""
    return step.own.times(1 / len(records.ranks))


def groups(at: api.Position) -> api.Plan:
    """The groups' sizes."""
    sizes = {"shards": api.COUNT, "replicas": api.COUNT}
    return {"groups": api.Kind({"strategy": api.exactly(at.params.strategy), **sizes})}


oracle = unreduced.Unreduced(
    unreduced.Step,
    own_divided,
    also=groups,
    reason="exactly that follows if each rank applies {share:.3g} times its own gradient alone",
)


def run(ctx: api.Context) -> None:
    """Train a linear map under FSDP1 on two ranks' parts of each global batch."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from scenarios.common import linear, plain_torch

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    hybrid = p.strategy != "NO_SHARD"
    shape = (ctx.world_size // p.shards, p.shards)
    sizes = shape if hybrid else (ctx.world_size, 1)
    ctx.record("groups", strategy=p.strategy, replicas=sizes[0], shards=sizes[1])
    plain = linear.model().to(ctx.device)
    module = FullyShardedDataParallel(
        copy.deepcopy(plain),
        sharding_strategy=getattr(ShardingStrategy, p.strategy),
        device_id=ctx.device,
        use_orig_params=True,
        **(_groups(ctx.device.type, *shape) if hybrid else {}),
    )

    def whole() -> dict[str, Tensor]:
        with FullyShardedDataParallel.summon_full_params(module, writeback=False):
            return plain_torch.copied(module.module)

    unreduced.train(ctx, plain, module, torch.optim.SGD(module.parameters(), lr=p.lr), whole)


def _groups(device: str, replicas: int, shards: int) -> dict[str, Any]:
    """The sharding groups and the groups of replicas, as FSDP takes them; before 2.2 torch has no
    mesh of devices."""
    import torch
    import torch.distributed as dist

    if find_spec("torch.distributed.device_mesh"):
        from torch.distributed.device_mesh import init_device_mesh

        names = ("replicate", "shard")
        return {"device_mesh": init_device_mesh(device, (replicas, shards), mesh_dim_names=names)}

    def joined(lists: Any) -> Any:
        groups = [(ranks, dist.new_group(ranks)) for ranks in lists]
        return next(group for ranks, group in groups if dist.get_rank() in ranks)

    ranks = torch.arange(replicas * shards).view(replicas, shards)
    return {"process_group": (joined(ranks.tolist()), joined(ranks.T.tolist()))}


def exercised(records: api.Records) -> api.Exercise:
    """There were several replicas, each of one rank, under a hybrid strategy."""
    groups = records.of("groups", 0)[0]
    text = f"{groups['strategy']} with {groups['replicas']} replicas of {groups['shards']} ranks"
    alone = groups["strategy"] != "NO_SHARD" and groups["shards"] == 1 and groups["replicas"] > 1
    return api.Exercise.of(alone, text) & unreduced.parted(records)
