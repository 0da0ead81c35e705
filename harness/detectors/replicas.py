"""Compares replicas: parameters that every rank of a group has a copy of.

The BLOOM-176B training found this bug late: layer-norm weights are replicated across
tensor-parallel ranks, each rank updates its own copy, and the usual logs do not show when they
diverge.

    differences = replica_differences(replicated_parameters(model), tensor_parallel_group)
    assert not differences, differences[0]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Difference:
    """A tensor whose copies are not bitwise equal."""

    name: str
    ranks: tuple[int, ...]
    """The ranks in the group whose copy differs from that of its rank 0."""
    greatest: float
    """The greatest absolute difference from rank 0's copy; nan if only NaNs differ."""


def replicated_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters that tensor parallelism does not split, as Megatron marks them.

    A parameter with a true attribute ``tensor_model_parallel`` is a shard, and is left out.
    """
    for name, parameter in module.named_parameters():
        if not getattr(parameter, "tensor_model_parallel", False):
            yield name, parameter


def replica_differences(
    tensors: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None
) -> list[Difference]:
    """Compare every rank's copy of each tensor with that of the group's rank 0, bit by bit.

    A collective call: every rank of ``group`` passes the same names, shapes and dtypes in the same
    order, and every rank gets the same result. Costs one all-gather of all tensors for each dtype.
    Returns an empty list if all copies agree.
    """
    pairs = [(name, tensor.detach().contiguous()) for name, tensor in tensors]
    differences = []
    for dtype in dict.fromkeys(tensor.dtype for _, tensor in pairs):
        differences += _compare([(n, t) for n, t in pairs if t.dtype == dtype], group)
    order = {name: index for index, (name, _) in enumerate(pairs)}
    return sorted(differences, key=lambda difference: order[difference.name])


def _compare(pairs: list[tuple[str, Tensor]], group: dist.ProcessGroup | None) -> list[Difference]:
    flat = torch.cat([tensor.reshape(-1) for _, tensor in pairs])
    copies = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
    dist.all_gather(copies, flat, group=group)
    sizes = [tensor.numel() for _, tensor in pairs]
    split = [copy.split(sizes) for copy in copies]
    differences = []
    for index, (name, _) in enumerate(pairs):
        reference, *others = (pieces[index] for pieces in split)
        bits = reference.view(torch.uint8)
        ranks = [r for r, peer in enumerate(others, 1) if not bits.equal(peer.view(torch.uint8))]
        if ranks:
            away = (reference.double() - split[r][index].double() for r in ranks)
            greatest = max(float(difference.abs().max()) for difference in away)
            differences.append(Difference(name, tuple(ranks), greatest))
    return differences
