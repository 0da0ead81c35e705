"""The whole tensors of which DTensors are the shards.

They are assembled from what each rank has: the ``full_tensor()`` of a release may itself be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REDUCED = {"sum": "sum", "avg": "mean", "product": "prod", "max": "amax", "min": "amin"}
"""By the operation that makes one tensor of partial ones, the method that does so."""


def assembled(tensor: Any) -> Any:
    """The complete tensor; a collective for a DTensor. A rank has its own copy of a replicated
    one."""
    import torch
    import torch.distributed as dist

    if not hasattr(tensor, "full_tensor"):
        return tensor
    operations = {getattr(placement, "reduce_op", "sum") for placement in tensor.placements}
    if not (_is_understood(tensor) and len(operations) == 1 and operations <= REDUCED.keys()):
        return tensor.full_tensor()
    shards = [(tensor.device_mesh.get_coordinate(), tensor.to_local().detach().cpu())]
    for number, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            group = tensor.device_mesh.get_group(number)
            of_ranks: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(of_ranks, shards, group)
            shards = [shard for of_rank in of_ranks for shard in of_rank]
    summands: dict[tuple[int, ...], Any] = {}
    for coordinate, shard in shards:
        key = tuple(n for n, p in zip(coordinate, tensor.placements, strict=True) if p.is_partial())
        summand = summands.setdefault(key, shard.new_zeros(tensor.shape))
        _put(summand, shard, _indices(tensor, coordinate))
    return getattr(torch.stack([*summands.values()]), REDUCED[operations.pop()])(0)


def divided(whole: Any, tensor: Any) -> Any:
    """This rank's part of a complete tensor, divided as a DTensor is."""
    for dimension, index in _indices(tensor, tensor.device_mesh.get_coordinate()):
        whole = whole.index_select(dimension, index)
    return whole


def _is_understood(tensor: Any) -> bool:
    """Whether this rank has a plain tensor, and the placements only divide, copy or reduce."""
    import torch

    kinds = {type(placement).__name__ for placement in tensor.placements}
    takes_part = tensor.device_mesh.get_coordinate() is not None
    is_plain = takes_part and type(tensor.to_local()) is torch.Tensor
    return is_plain and kinds <= {"Shard", "_StridedShard", "Replicate", "Partial"}


def _indices(tensor: Any, coordinate: Sequence[int]) -> list[tuple[int, Any]]:
    """By dimension that is divided, the indices of what the rank at a coordinate of the mesh has.

    The dimensions of the mesh divide one after another. A strided one divides each of
    ``split_factor`` blocks, as FSDP2 does with what tensor parallelism has divided."""
    import torch

    by_dimension: dict[int, Any] = {}
    sizes = tensor.device_mesh.shape
    for size, number, placement in zip(sizes, coordinate, tensor.placements, strict=True):
        dimension = getattr(placement, "dim", None)
        if dimension is not None:
            index = by_dimension.get(dimension, torch.arange(tensor.shape[dimension]))
            blocks = index.chunk(getattr(placement, "split_factor", 1))
            pieces = [piece for block in blocks for piece in block.chunk(size)[number : number + 1]]
            by_dimension[dimension] = torch.cat([index[:0], *pieces])
    return list(by_dimension.items())


def _put(whole: Any, shard: Any, indices: Sequence[tuple[int, Any]]) -> None:
    """Put a shard in its place."""
    if not indices:
        whole.copy_(shard)
        return
    (dimension, index), *others = indices
    block = whole.index_select(dimension, index)
    _put(block, shard, others)
    whole.index_copy_(dimension, index, block)
