"""What a rank has of parameters that DeepSpeed splits, or copies, and which ranks share them.

ZeRO 1 and 2 step ranges of a flat copy in fp32, a range for each rank, and gather the weights
afterwards. With ZeRO 3 a rank has ranges of the weights, too. Without ZeRO, in 16 bits, each rank
has copies of all its weights.

A module that a pipeline ties is on several of its stages. Some of its weights are copies, and each
stage computes a part of their gradient. The others are trained by each stage for itself, under one
name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch.distributed as dist

from ..events import is_engine
from .layouts import Described, Layout, Master, Share, living, values_of

COPIES = (
    ("bit16_groups", "single_partition_of_fp32_groups"),
    ("bf16_groups", "fp32_groups_flat_partition"),
    ("fp16_groups", "fp32_groups_flat"),
    ("fp16_groups", "fp32_groups"),
)
"""The attributes of DeepSpeed's optimizers with groups of parameters, and with a flat copy for each
group, or a copy of each parameter: of ZeRO 1 and 2, of ZeRO 1 in bf16 with gradients in fp32, and
of 16 bits without ZeRO."""


UNFLATTENED = ("FP16_Optimizer", "FP16_UnfusedOptimizer")
"""The optimizers at stage 0 in bf16 and fp16, which flatten gradients only in the step."""

GROUPS = ("seq_data_parallel_group", "data_parallel_group")
"""The attributes of an engine with the ranks over which it averages gradients."""


class Engines(Layout):
    """The ranks and stages of DeepSpeed's engines. Who steps the weights, ``DeepSpeed`` says."""

    package = "deepspeed"

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.places: dict[int, tuple[list[int], str, int]] = {}
        """By the id of a parameter: the ranks that have it, its part, and how many stages."""
        for engine in filter(is_engine, modules.modules):
            try:
                self._note(engine)
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
                continue  # private names of another release: nothing is known of its ranks
        modules.has_engine |= bool(self.places)

    def _note(self, engine: Any) -> None:
        groups = [engine.__dict__.get(name) for name in GROUPS]
        sizes = {dist.get_world_size(group) for group in groups if group is not None}
        if len(sizes) != 1:
            return  # some ranks have parts of the same rows
        ranks = dist.get_process_group_ranks(next(one for one in groups if one is not None))
        is_pipeline = engine.__dict__.get("num_stages", 1) > 1
        part = f"pipeline stage {engine.stage_id}" if is_pipeline else ""
        for parameter in engine.parameters():
            if getattr(parameter, "allreduce", True):
                self.places[id(parameter)] = ranks, part, 1
        this = dist.get_rank()
        ties = getattr(engine, "module", engine).__dict__.get("tied_comms")
        for tie in ties.values() if isinstance(ties, dict) else ():
            everywhere = sorted(rank + other - this for rank in ranks for other in tie["ranks"])
            names = tie["weight_attr"]
            for name in [names] if isinstance(names, str) else names:
                weight = operator.attrgetter(name)(tie["module"])
                self.places[id(weight)] = everywhere, "tied", len(tie["ranks"])

    def share(self, parameter: Any, described: Described) -> Share | None:
        place = self.places.get(id(parameter))
        if place is not None:
            described.ranks, described.part, described.stages = place
            described.same_rows |= described.stages > 1
        return None


class DeepSpeed(Layout):
    """ZeRO 1 to 3, and 16 bits without ZeRO."""

    package = "deepspeed"

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.copies = {
            key: place
            for one in living(lambda kind: str(kind.__module__).startswith("deepspeed.runtime."))
            if hasattr(type(one), "step")
            for key, place in _copies(one)
        }

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
        rounded = partial(values_of, parameter, begin, count)
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
            id(zero.optimizer),
            flat,
            start,
            count,
            partial(values_of, parameter.ds_tensor, 0, count),
        ),
    )


def _gathered(parameter: Any, is_whole: bool) -> Any:
    """A weight that is there between steps; nothing of others, that come and go."""
    weight = parameter.detach()
    return weight if is_whole and weight.numel() == parameter.ds_numel else weight.reshape(-1)[:0]


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


def is_pipeline(engine: Any) -> bool:
    """Whether it is an engine of DeepSpeed that trains a stage of a pipeline."""
    return hasattr(getattr(engine, "module", None), "tied_comms")


def weights_of(engine: Any) -> list[Any]:
    """What this rank has of the weights of an engine's model: with ZeRO 3 a part of each."""
    return [getattr(one, "ds_tensor", one) for one in engine.module.parameters()]


def is_partitioned(parameter: Any) -> bool:
    """Whether ZeRO 3 has made it: a rank has a part of its values."""
    return hasattr(parameter, "ds_id")


def whole_masters(optimizer: Any) -> dict[int, Any]:
    """The fp32 weights of the optimizers in 16 bits without ZeRO, by the parameter's id."""
    places = dict(_copies(optimizer))
    parameters = (one for group in getattr(optimizer, "fp16_groups", ()) for one in group)
    return {
        id(one): values_of(copy, start, one.numel()).view(one.shape)
        for one in parameters
        for _, copy, start, _ in ([places[id(one)]] if id(one) in places else [])
    }


def whole_gradient(optimizer: Any, parameter: Any) -> Any:
    """The complete gradient in fp32 that a step applies, on each rank; None where DeepSpeed's own
    accessor has it. Of BF16_Optimizer that is not reliable: on several ranks it raises, or returns
    another rank's gradients.
    """
    groups = getattr(optimizer, "bf16_groups", ()), getattr(optimizer, "fp32_groups_gradients", ())
    for parameters, gradients in zip(*groups):
        for one, gradient in zip(parameters, gradients):
            if one is parameter:
                return gradient.view(parameter.shape)
    if type(optimizer).__name__ in UNFLATTENED and parameter.grad is not None:
        return parameter.grad
    if hasattr(parameter, "_hp_mapping"):
        return parameter.get_full_hp_grad()
    return None
