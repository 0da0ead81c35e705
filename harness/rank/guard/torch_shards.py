"""What a rank has of parameters that torch itself splits: FSDP2, FSDP1, tensor parallelism."""

from __future__ import annotations

import gc
import sys
from typing import Any

from .layouts import Layout, Share
from .posts import Described

FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param"


class Fsdp2(Layout):
    """``fully_shard``."""

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.shards: dict[int, Any] = {}
        for shard in _fsdp2_parameters():
            self.shards[id(shard.sharded_param)] = shard
            self._name(shard)

    def _name(self, shard: Any) -> None:
        """Give a shard the name of its parameter: in a backward, the modules have that one."""
        key, whole = id(shard.sharded_param), id(getattr(shard, "_unsharded_param", None))
        name = self.modules.names.pop(whole, None) or getattr(shard, "_param_fqn", None)
        self.modules.parameters.pop(whole, None)
        self.modules.parameters[key] = shard.sharded_param
        if name:
            self.modules.names[key] = name

    def share(self, parameter: Any, described: Described) -> Share | None:
        shard = self.shards.get(id(parameter))
        if shard is None:
            return None
        info, size = shard.mesh_info, shard._orig_size
        rank = getattr(info, "shard_mesh_rank", 0)
        described.numel = size.numel()
        described.ranks = info.mesh.mesh.flatten().tolist()
        if shard.fsdp_placement.dim == 0 and size:
            row = described.numel // max(1, size[0])
            described.begin = min(rank * shard.padded_sharded_param_size[0], size[0]) * row
            described.end += described.begin
        else:
            described.left_out = f"sharded on dimension {shard.fsdp_placement.dim}"
        return Share(f"shard {rank}", getattr(shard, "_unsharded_param", None))


def _fsdp2_parameters() -> list[Any]:
    kind = getattr(sys.modules.get(FSDP2), "FSDPParam", None)
    return [one for one in gc.get_objects() if type(one) is kind] if kind else []


class DTensors(Layout):
    """DTensors of tensor parallelism."""

    def share(self, parameter: Any, described: Described) -> Share | None:
        if not hasattr(parameter, "placements"):
            return None
        coordinate = parameter.device_mesh.get_coordinate() or ()
        placements = enumerate(parameter.placements)
        cut = [(dim, coordinate[dim]) for dim, one in placements if not one.is_replicate()]
        described.left_out = "DTensors of tensor parallelism"
        return Share(f"part {cut}")


class Fsdp1(Layout):
    """``FullyShardedDataParallel``."""

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.flattened: set[int] = set()
        self.unsharded: set[int] = set()
        """What is whole from the forward to the end of the backward, and a shard in the step."""
        for one in modules.modules:
            if type(one).__name__ == "FullyShardedDataParallel":
                ids = set(map(id, one.parameters()))
                self.flattened |= ids
                name = getattr(one.sharding_strategy, "name", "")
                self.unsharded |= ids if name in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2") else set()

    def share(self, parameter: Any, described: Described) -> Share | None:
        if id(parameter) not in self.flattened and not hasattr(parameter, "_is_flat_param"):
            return None
        described.left_out = "FSDP1 shards them"
        if id(parameter) in self.unsharded:
            described.numel = described.size = described.end = 0
        return Share()
