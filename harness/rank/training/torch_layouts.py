"""What a rank has of parameters that torch itself splits: FSDP2, FSDP1, tensor parallelism.

A shard is a range of the values of the whole parameter, in an order in which the dimension that is
split comes first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import torch.distributed as dist
from torch import nn

from .layouts import Described, Layout, Share, instances, local

FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param"


class Fsdp2(Layout):
    """``fully_shard``, also of DTensors: then the whole of a shard is this rank's part of them."""

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.shards: dict[int, Any] = {}
        for shard in instances(FSDP2, "FSDPParam"):
            self.shards[id(shard.sharded_param)] = shard
            self._name(shard)

    def _name(self, shard: Any) -> None:
        """Give a shard the name of its parameter: in a backward, the modules have that one."""
        key, whole = id(shard.sharded_param), id(getattr(shard, "_unsharded_param", None))
        name = self.modules.names.get(whole) or self.modules.names.get(key)
        name = name or getattr(shard, "_param_fqn", None)
        self.modules.forget(whole)
        self.modules.parameters[key] = shard.sharded_param
        if name:
            self.modules.names[key] = name

    def share(self, parameter: Any, described: Described) -> Share | None:
        shard = self.shards.get(id(parameter))
        if shard is None:
            return None
        info, size, dim = shard.mesh_info, shard._orig_size, shard.fsdp_placement.dim
        rank = getattr(info, "shard_mesh_rank", 0)
        described.numel = size.numel()
        described.ranks, described.part = _ranks_of(shard, info)
        described.same_rows |= len(described.ranks) > info.mesh.size()
        length = size[dim] if size else 1
        if getattr(info, "shard_mesh_size", 1) > 1:
            row = described.numel // max(1, length)
            padded = shard.padded_sharded_param_size[dim] if size else 1
            described.begin = min(rank * padded, length) * row
            described.end = described.begin + described.size
        whole = getattr(shard, "_unsharded_param", None)
        if dim == 0:
            return Share(f"shard {rank}", whole)

        def ordered(tensor: Any) -> Any:
            return tensor.movedim(dim, 0)

        def used(_: Any) -> Any:
            return None if parameter.grad is None else ordered(local(parameter.grad))

        return Share(f"shard {rank}", whole, ordered, used)


def _ranks_of(shard: Any, info: Any) -> tuple[list[int], str]:
    """The ranks whose gradients a shard of FSDP2 has, and which part of a DTensor it is of."""
    ranks = info.mesh.mesh.flatten().tolist()
    spec = getattr(shard, "_unsharded_dtensor_spec", None) or getattr(shard, "_tp_spec", None)
    if spec is None:
        return ranks, ""
    mesh = getattr(shard, "_spmd_mesh", None)
    coordinate = spec.mesh.get_coordinate() or []
    split = [dim for dim, one in enumerate(spec.placements) if not one.is_replicate()]
    part = f"part {[(dim, coordinate[dim]) for dim in split]}" if split else ""
    if mesh is None or len(split) == len(spec.placements):
        return ranks, part
    if split:
        return ranks, f"{part} of rank {os.environ.get('RANK', 0)}"
    return mesh.mesh.flatten().tolist(), ""


CONTEXT = {"cp", "context", "sp", "seq", "sequence", "ulysses", "ring"}
"""Words in the names of meshes whose ranks have parts of the same rows."""


def split_rows() -> bool:
    """Whether ranks read the same rows, of which each computes some words."""
    meshes = instances("torch.distributed.device_mesh", "DeviceMesh")
    names = {name for mesh in meshes for name in getattr(mesh, "mesh_dim_names", None) or ()}
    return any(word in CONTEXT for name in names for word in str(name).lower().split("_"))


ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer of this rank's share, that ``ZeroRedundancyOptimizer`` steps; None for
    others."""
    return optimizer.optim if type(optimizer).__module__ == ZERO else None


def averages() -> str:
    """Why copies of a weight may differ on purpose; empty if they may not."""
    names = [type(one).__name__ for one in instances(AVERAGERS, "ModelAverager")]
    return f"{names[0]} averages the weights" if names else ""


class DTensors(Layout):
    """DTensors of tensor parallelism: each part is compared among the ranks that have it."""

    def share(self, parameter: Any, described: Described) -> Share | None:
        if not hasattr(parameter, "placements"):
            return None
        coordinate = parameter.device_mesh.get_coordinate() or ()
        placements = enumerate(parameter.placements)
        split = [(dim, coordinate[dim]) for dim, one in placements if not one.is_replicate()]
        described.part = f"part {split}" if split else ""
        return Share(hooked=parameter)


class Fsdp1(Layout):
    """``FullyShardedDataParallel``: the parameters of a module are one flat parameter, and each
    rank has a range of it."""

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.shares: dict[int, tuple[Any, Any, int, Any]] = {}
        for name, state, handle in _fsdp1_handles(modules.roots):
            flat = handle.flat_param
            for parameter in state.parameters():  # flat ones, and views while a step computes
                is_flat = getattr(parameter, "_is_flat_param", False)
                if is_flat or not isinstance(parameter, nn.Parameter):
                    modules.forget(id(parameter))
            originals = getattr(flat, "_params", None)
            if originals is None:
                modules.name_parameter(flat, f"{name}flat")
                self.shares[id(flat)] = state, handle, 0, None
                continue
            pieces = zip(accumulate(flat._numels_with_padding, initial=0), flat._is_padding_mask)
            offsets = [begin for begin, is_padding in pieces if not is_padding]
            for number, original in enumerate(originals):
                modules.name_parameter(original, name + flat._fqns[number])
                self.shares[id(original)] = state, handle, offsets[number], number

    def share(self, parameter: Any, described: Described) -> Share | None:
        place = self.shares.get(id(parameter))
        if place is None:
            return None
        state, handle, offset, number = place
        flat, shard = handle.flat_param, handle.rank
        if any(one is not None for one in getattr(flat, "_param_extensions", ())):
            described.left_out = "FSDP1 shards DTensors"
            described.numel = described.size = described.end = 0  # it is whole at times
            return Share()
        described.ranks = _fsdp1_ranks(state)
        if not handle.uses_sharded_strategy:
            shard, begin, end = 0, 0, flat._unpadded_unsharded_size.numel()
        else:
            padded = flat._sharded_size.numel()
            begin, end = handle.rank * padded, (handle.rank + 1) * padded
        if number is None:
            described.numel = flat._unpadded_unsharded_size.numel()
            described.begin = min(begin, described.numel)
            described.end = min(end, described.numel)
            weight = partial(getattr, flat, "_local_shard")
            count = described.end - described.begin

            def used(_: Any) -> Any:
                return None if flat.grad is None else flat.grad[:count]

            return Share(f"shard {shard}", flat, used=used, weight=weight)
        described.numel = count = flat._numels[number]
        described.begin = min(max(begin - offset, 0), count)
        described.end = max(described.begin, min(end - offset, count))
        start = max(offset - begin, 0)
        end = start + described.end - described.begin
        return Share(
            f"shard {shard}",
            flat,
            lambda gradient: gradient.reshape(-1)[offset : offset + count],
            weight=lambda: flat._local_shard[start:end],
        )


def _fsdp1_handles(roots: Iterable[Any]) -> Iterator[tuple[str, Any, Any]]:
    """The prefix of the names, the wrapper, and the handle of each flat parameter."""
    for root in roots:
        for name, module in root.named_modules():
            if type(module).__name__ != "FullyShardedDataParallel":
                continue
            handle = getattr(module, "_handle", None)
            if handle is not None:
                yield f"{name}." if name else "", module, handle


def _fsdp1_ranks(state: Any) -> list[int]:
    ranks = dist.get_process_group_ranks(state.process_group)
    others = getattr(state, "_inter_node_pg", None)  # only with a hybrid strategy, which FSDP drops
    if others is None:  # if it has nothing to shard
        return ranks
    own_rank = dist.get_rank()
    distances = [other - own_rank for other in dist.get_process_group_ranks(others)]
    return sorted(rank + distance for rank in ranks for distance in distances)
