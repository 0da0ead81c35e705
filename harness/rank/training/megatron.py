"""What a rank has of parameters that Megatron splits, or copies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch.distributed as dist

from .layouts import Described, Layout, Master, Share, living, values_of

COPIES = (
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
    ("model_fp32_groups", "shard_fp32_groups"),
    ("float16_groups", "fp32_from_float16_groups"),
)
"""The attributes of Megatron's optimizers with groups of parameters, and with what they step: the
distributed optimizer has shards, and the one for 16 bits has whole copies."""
TIED = "shared_embedding"
"""What the copies of the embedding are called, whose modules have other names on other stages."""


class Megatron(Layout):
    """Tensor parallelism, pipelines and experts, by the attributes of parameters, and the
    distributed optimizer."""

    package = "megatron"

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.reduced = {
            id(parameter)
            for one in modules.modules
            if type(one).__module__.startswith("megatron.core.distributed")
            for parameter in one.parameters()
        }
        modules.has_engine |= bool(self.reduced)
        self.gathered: dict[int, bool] = {}
        """By the id of a parameter of which ranks step shards, whether it is whole after a step."""
        for one in modules.modules:
            config = one.__dict__.get("ddp_config")
            if getattr(config, "use_distributed_optimizer", False):
                is_late = getattr(config, "overlap_param_gather", False)
                self.gathered.update({id(parameter): not is_late for parameter in one.parameters()})
        self.shards: dict[int, tuple[int, Any, int]] = {}
        """By the id of a parameter: the optimizer, what it steps, and where that begins."""
        self.optimizers: dict[int, int] = {}
        """By the id of a parameter, the optimizer of which ranks have shards."""
        self.state: Any = sys.modules.get("megatron.core.parallel_state")
        if self.state is None or not self.state.model_parallel_is_initialized():
            self.state = None
        self.tied = {id(weight) for one in modules.modules for weight in _shared_embedding(one)}
        for wrapper in _wrappers():
            try:
                self._note(wrapper)
            except (AttributeError, KeyError, TypeError):
                continue  # private names of another release: its shards are left out

    def _note(self, wrapper: Any) -> None:
        optimizer = id(wrapper.optimizer)
        chunks = getattr(wrapper, "model_chunks", [])
        for number, chunk in enumerate(chunks if len(chunks) > 1 else ()):
            for parameter in chunk.parameters():  # of another part of the model, under one name
                name = self.modules.names.get(id(parameter), "")
                if not name.startswith("chunk "):
                    self.modules.names[id(parameter)] = f"chunk {number}: {name}"
        for parameters, copies in COPIES:
            groups = zip(getattr(wrapper, parameters, ()), getattr(wrapper, copies, ()))
            for parameter, copy in ((p, c) for group in groups for p, c in zip(*group)):
                if copy is None:
                    raise AttributeError("the optimizer has the copies itself")
                start = 0
                if id(parameter) in self.gathered:
                    start = wrapper._get_model_param_range_map(parameter)["param"].start
                self.shards[id(parameter)] = optimizer, copy, start
        for buffer in getattr(wrapper, "buffers", ()):
            self.optimizers.update({id(one): optimizer for one in buffer.param_index_map})

    def share(self, parameter: Any, described: Described) -> Share | None:
        if getattr(parameter, "allreduce", True) is False:
            described.left_out = "experts are not reduced over all ranks"
            return Share()
        is_reduced = id(parameter) in self.reduced
        if is_reduced and self.state is not None:
            self._note_ranks(parameter, described)
        is_part = getattr(parameter, "tensor_model_parallel", False)
        is_split = False
        if self.state is None:
            described.left_out = (
                "nothing says which ranks share Megatron's parts" if is_part else ""
            )
        elif self.state.get_tensor_model_parallel_world_size() > 1:
            is_split = True  # its layers mark their weights also where one rank has them whole
            if is_part:
                rank = self.state.get_tensor_model_parallel_rank()
                described.part = f"part {rank} {described.part}".rstrip()
            else:
                described.left_out = "Megatron's tensor parallelism adds up parts of them"
                described.ranks = []
        if id(parameter) in self.gathered:
            return self._shard(parameter, described)
        copy = self.shards.get(id(parameter))
        if not is_reduced and not is_split and copy is None and not described.left_out:
            return None
        share = Share(hooked=parameter, is_copy=is_split)
        if copy is not None:
            count = copy[1].numel()
            rounded = partial(values_of, parameter, 0, count)
            share.master = Master(copy[0], copy[1], 0, count, rounded)
        return share

    def _note_ranks(self, parameter: Any, described: Described) -> None:
        """Note which ranks average the gradients of a parameter. What they read is not compared:
        some loops read the rows of all ranks, and each takes its own."""
        state = self.state
        described.same_rows = True
        described.ranks = ranks = dist.get_process_group_ranks(
            state.get_data_parallel_group(with_context_parallel=True)
        )
        if state.get_pipeline_model_parallel_world_size() == 1:
            return
        described.part = f"pipeline stage {state.get_pipeline_model_parallel_rank()}"
        if id(parameter) in self.tied:
            this, others = (
                dist.get_rank(),
                dist.get_process_group_ranks(state.get_embedding_group()),
            )
            described.ranks = sorted(rank + other - this for rank in ranks for other in others)
            described.part, described.stages, described.name = "tied", len(others), TIED

    def _shard(self, parameter: Any, described: Described) -> Share:
        """What a rank has of a parameter under the distributed optimizer."""
        optimizer = self.optimizers.get(id(parameter))
        described.begin = described.end = 0
        if optimizer is None:
            described.left_out = "Megatron's distributed optimizer shards them"
            return Share()
        flat = parameter.detach().reshape(-1)
        _, copy, start = self.shards.get(id(parameter), (optimizer, flat[:0], 0))
        described.begin, described.end = start, start + copy.numel()
        rounded = partial(values_of, parameter, start, copy.numel())
        share = Share(
            hooked=parameter,
            is_copy=bool(described.left_out),
            master=Master(optimizer, copy, 0, copy.numel(), rounded),
        )
        if not self.gathered[id(parameter)]:  # the next forward gathers it
            share.weight = partial(values_of, parameter, 0, 0)
        return share


def scheduled_decays(optimizer: Any) -> list[tuple[float, float]]:
    """The weight decay of each group of an optimizer, and the one that the state of its schedule
    gives it; empty without a schedule of Megatron's, or of NeMo's, which was made from that."""
    pairs = []
    groups = {id(group) for group in optimizer.param_groups}
    for schedule in living(lambda kind: kind.__name__ == "OptimizerParamScheduler"):
        with contextlib.suppress(Exception):  # such as a release with other names
            takes_group = schedule.get_wd.__code__.co_argcount > 1
            for group in schedule.optimizer.param_groups:
                if id(group) in groups:
                    decay = schedule.get_wd(group) if takes_group else schedule.get_wd()
                    pairs.append((group["weight_decay"], decay * group.get("wd_mult", 1.0)))
    return pairs


def _wrappers() -> Iterator[Any]:
    """Megatron's optimizers, each of which wraps one of torch."""
    if "megatron.core.optimizer" not in sys.modules:
        return
    yield from (
        one
        for one in living(lambda kind: str(kind.__module__).startswith("megatron.core.optimizer"))
        if "optimizer" in getattr(one, "__dict__", {})
    )


def _shared_embedding(module: Any) -> Iterator[Any]:
    """This rank's copy of an embedding that the output layer shares."""
    if module.__dict__.get("share_embeddings_and_output_weights", False):
        weight = getattr(module, "shared_embedding_or_output_weight", lambda: None)()
        if weight is not None:
            yield weight
