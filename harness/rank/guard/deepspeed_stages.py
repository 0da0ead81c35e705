"""Which ranks of DeepSpeed's engine have copies of a weight, in a pipeline and without one.

A module that a pipeline ties is on several of its stages. Some of its weights are copies, and each
stage computes a part of their gradient. The others are trained by each stage for itself, under one
name.
"""

from __future__ import annotations

import operator
from typing import Any

import torch.distributed as dist

from ..events import is_engine
from .layouts import Layout, Share
from .posts import Described

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
        ties = getattr(engine, "module", engine).__dict__.get("tied_comms")
        for tie in ties.values() if isinstance(ties, dict) else ():
            everywhere = _shifted(ranks, tie["ranks"])
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


def _shifted(ranks: list[int], others: list[int]) -> list[int]:
    """All ranks that have a weight, by those of one stage, and by those of one replica."""
    this = dist.get_rank()
    return sorted(rank + other - this for rank in ranks for other in others)
