"""What a rank has of parameters that DeepSpeed's optimizers split, or copy.

ZeRO 1 and 2 step ranges of a flat copy in fp32, a range for each rank, and gather the weights
afterwards. With ZeRO 3 a rank has ranges of the weights, too. Without ZeRO, in 16 bits, each rank
has copies of all its weights.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch.distributed as dist

from .layouts import Layout, Master, Share
from .posts import Described

COPIES = (
    ("bit16_groups", "single_partition_of_fp32_groups"),
    ("bf16_groups", "fp32_groups_flat_partition"),
    ("fp16_groups", "fp32_groups_flat"),
    ("fp16_groups", "fp32_groups"),
)
"""The attributes of DeepSpeed's optimizers with groups of parameters, and with a flat copy for each
group, or a copy of each parameter: of ZeRO 1 and 2, of ZeRO 1 in bf16 with gradients in fp32, and
of 16 bits without ZeRO."""


class DeepSpeed(Layout):
    """ZeRO 1 to 3, and 16 bits without ZeRO."""

    package = "deepspeed"

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.copies = {key: place for one in _optimizers() for key, place in _copies(one)}

    def share(self, parameter: Any, described: Described) -> Share | None:
        is_expert = getattr(parameter, "allreduce", True) is False
        if hasattr(parameter, "ds_tensor"):
            return _zero_3(parameter, described, is_expert)
        is_split = hasattr(parameter, "_hp_mapping")
        described.optimized |= is_split  # the optimizer has parts of flat copies
        optimizer, flat, start, ranks = self.copies.get(id(parameter), (0, None, 0, []))
        if flat is None:
            return Share(hooked=parameter, steps=False) if is_split else None
        described.ranks = described.ranks or ranks
        if is_expert:
            described.left_out = "experts are not reduced over all ranks"
        if is_split:
            fragment, start = parameter._hp_mapping, 0
            described.begin = described.end = 0  # another rank updates it
            if fragment is not None:
                place, start = fragment.lp_fragment_address, fragment.hp_fragment_address.start
                described.begin, described.end = place.start, place.start + place.numel
        begin, count = described.begin, described.end - described.begin
        rounded = partial(_range, parameter, begin, count)
        return Share(hooked=parameter, master=Master(optimizer, flat, start, count, rounded))


def _zero_3(parameter: Any, described: Described, is_expert: bool) -> Share | None:
    """A range of each parameter, padded to the same length on all ranks."""
    described.optimized, described.numel = True, parameter.ds_numel
    described.begin = described.end = described.size = 0
    zero: Any = getattr(parameter, "_z3_optimizer", None)
    place = zero.grad_position.get(parameter.ds_id) if zero is not None else None
    if place is None or is_expert or hasattr(parameter, "comm"):
        described.left_out = (
            "experts are not reduced over all ranks" if is_expert else "ZeRO 3 shards them"
        )
        return Share(steps=False)
    number, start, _ = place
    flat, length = zero.fp32_partitioned_groups_flat[number], parameter.ds_tensor.ds_numel
    described.ranks = ranks = dist.get_process_group_ranks(parameter.ds_process_group)
    rank = ranks.index(dist.get_rank())
    described.begin = min(rank * length, described.numel)
    described.end = min(described.begin + length, described.numel)
    count = described.end - described.begin
    if flat.numel() < start + count:
        described.left_out = "ZeRO 3 keeps their copies on a disk"
        return Share(steps=False)
    is_whole = getattr(parameter, "ds_persist", False)  # it stays gathered between steps
    return Share(
        "" if is_whole else f"shard {rank}",
        hooked=parameter,
        weight=partial(_gathered, parameter, is_whole),
        master=Master(
            id(zero.optimizer), flat, start, count, partial(_range, parameter.ds_tensor, 0, count)
        ),
    )


def _gathered(parameter: Any, is_whole: bool) -> Any:
    """A weight that is there between steps; nothing of others, that come and go."""
    weight = parameter.detach()
    return weight if is_whole and weight.numel() == parameter.ds_numel else weight.reshape(-1)[:0]


def _range(tensor: Any, start: int, count: int) -> Any:
    return tensor.detach().reshape(-1)[start : start + count]


def _optimizers() -> Iterator[Any]:
    for candidate in gc.get_objects():
        if str(type(candidate).__module__).startswith("deepspeed.runtime.") and hasattr(
            type(candidate), "step"
        ):
            yield candidate


def _copies(zero: Any) -> Iterator[tuple[int, tuple[int, Any, int, list[int]]]]:
    """Of each parameter the optimizer of torch, the flat copy of its group, where it begins there
    if the copy is whole, and the ranks that have parts of it."""
    inner = getattr(zero, "optimizer", None)
    for parameters, copies in COPIES:
        groups, flats = getattr(zero, parameters, None), getattr(zero, copies, None)
        if inner is None or not groups or not flats:
            continue
        reductions = getattr(zero, "real_dp_process_group", None)
        for number, (group, flat) in enumerate(zip(groups, flats)):
            ranks = dist.get_process_group_ranks(reductions[number]) if reductions else []
            start = 0
            for at, parameter in enumerate(group):
                copy = flat[at] if isinstance(flat, list) else flat
                yield id(parameter), (id(inner), copy, 0 if copy is not flat else start, ranks)
                start += parameter.numel()
