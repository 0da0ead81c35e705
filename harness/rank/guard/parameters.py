"""The parameters of a training, whatever splits them: DDP, FSDP, tensor parallelism, ZeRO."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from .posts import Described
from .samples import local

FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param"
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP1 and checkpointing put into the names of parameters."""


@dataclass
class Watched:
    """A parameter of this rank."""

    parameter: Any
    described: Described
    hooked: Any
    """The tensor whose hook gets the gradient that this rank computes; None: not compared."""
    fragment: Any = None
    """The part of DeepSpeed's fp32 copy that this rank updates, for ZeRO 1 and 2."""

    @property
    def weight(self) -> Any:
        """What this rank has of the weight."""
        return local(self.parameter)

    def gradient(self, optimizer: Any) -> Any:
        """What this rank has of the gradient that the optimizer uses; None without one."""
        if self.fragment is None:
            return self.parameter.grad
        part = self.fragment.hp_fragment
        for group in optimizer.param_groups:
            for whole in group["params"]:
                if whole.grad is None or part.device != whole.device:
                    continue
                start = (part.data_ptr() - whole.data_ptr()) // whole.element_size()
                if 0 <= start < whole.numel():
                    return whole.grad.reshape(-1)[start : start + part.numel()]
        return None


class Modules:
    """The modules of this process, found among all its objects: once, as that takes a while."""

    def __init__(self) -> None:
        modules = _modules()
        inner = {id(child) for one in modules for child in _children(one)}
        roots = [one for one in modules if id(one) not in inner]
        self.names: dict[int, str] = {}
        self.parameters: dict[int, Any] = {}
        for root in roots:
            for name, parameter in root.named_parameters():
                self.names.setdefault(id(parameter), _plain(name))
                self.parameters.setdefault(id(parameter), parameter)
        self.flattened = {
            id(parameter)
            for one in modules
            if type(one).__name__ == "FullyShardedDataParallel"
            for parameter in one.parameters()
        }
        self.ranks: dict[int, list[int]] = {}
        for one in modules:
            if isinstance(one, nn.parallel.DistributedDataParallel):
                ranks = dist.get_process_group_ranks(one.process_group)
                self.ranks.update((id(p), ranks) for p in one.module.parameters())
        self.shards: dict[int, Any] = {}
        for shard in _fsdp2_parameters():
            self.shards[id(shard.sharded_param)] = shard
            self._name_shard(shard)

    def _name_shard(self, shard: Any) -> None:
        """Give a shard the name of its parameter: in a backward, the modules have that one."""
        key, whole = id(shard.sharded_param), id(getattr(shard, "_unsharded_param", None))
        name = self.names.pop(whole, None) or getattr(shard, "_param_fqn", None)
        self.parameters.pop(whole, None)
        self.parameters[key] = shard.sharded_param
        if name:
            self.names[key] = name


def _modules() -> list[Any]:
    kinds: dict[type, bool] = {}  # asking an object itself may call a property of a proxy
    modules = []
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, nn.Module)
        if kinds[kind]:
            modules.append(candidate)
    return modules


def _children(module: Any) -> list[Any]:
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _fsdp2_parameters() -> list[Any]:
    kind = getattr(sys.modules.get(FSDP2), "FSDPParam", None)
    return [one for one in gc.get_objects() if type(one) is kind] if kind else []


def _plain(name: str) -> str:
    """The name of a parameter without what wrappers put into it."""
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name[len("module.") :] if name.startswith("module.") else name


def watched(optimizer: Any, modules: Modules, held: Iterable[int]) -> list[Watched]:
    """The parameters of an optimizer, and those with gradients that no optimizer holds.

    ``held`` are the ids of the parameters of all optimizers.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    ids = {id(parameter) for parameter in parameters}
    others = [
        parameter
        for key, parameter in modules.parameters.items()
        if key not in ids and key not in held and parameter.requires_grad
    ]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    return [
        _watched(parameter, modules, numbers.get(id(parameter)))
        for parameter in [*parameters, *others]
    ]


def _watched(parameter: Any, modules: Modules, number: int | None) -> Watched:
    key, weight = id(parameter), local(parameter)
    described = Described(
        name=modules.names.get(key, f"optimizer.{number}"),
        numel=weight.numel(),
        size=weight.numel(),
        begin=0,
        end=weight.numel(),
        ranks=modules.ranks.get(key, []),
        copy="",
        optimized=number is not None,
        trained=parameter.requires_grad,
        dtype=str(parameter.dtype)[len("torch.") :],
    )
    hooked, fragment, shard = parameter, None, ""
    if key in modules.shards:
        hooked, shard = _of_fsdp2(described, modules.shards[key])
    elif hasattr(parameter, "placements"):
        shard = _of_mesh(described, parameter)
    elif hasattr(parameter, "ds_tensor"):
        described.left_out = "ZeRO 3 shards them"
    elif getattr(parameter, "_hp_mapping", None) is not None:
        fragment = parameter._hp_mapping
        address = fragment.lp_fragment_address
        described.begin, described.end = address.start, address.start + address.numel
    elif hasattr(parameter, "_hp_mapping"):
        described.begin = described.end = 0  # another rank updates it
    elif key in modules.flattened or hasattr(parameter, "_is_flat_param"):
        described.left_out = "FSDP1 shards them"
    split = getattr(parameter, "tensor_model_parallel", False)
    if split or described.left_out or key not in modules.names:
        shard, described.ranks = f"{shard} of rank {os.environ.get('RANK', 0)}", []
    described.copy = f"{described.name} {shard} {described.ranks or ''}"
    if getattr(parameter, "allreduce", True) is False:
        described.left_out = "experts are not reduced over all ranks"
    compared = parameter.requires_grad and parameter.is_floating_point() and not described.left_out
    return Watched(parameter, described, hooked if compared else None, fragment)


def _of_fsdp2(described: Described, shard: Any) -> tuple[Any, str]:
    """Describe a parameter of ``fully_shard``; returns its whole tensor and which shard this is."""
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
    return getattr(shard, "_unsharded_param", None), f"shard {rank}"


def _of_mesh(described: Described, parameter: Any) -> str:
    """Describe a DTensor of tensor parallelism; returns which part this rank has."""
    coordinate = parameter.device_mesh.get_coordinate() or ()
    placements = enumerate(parameter.placements)
    cut = [(dim, coordinate[dim]) for dim, one in placements if not one.is_replicate()]
    described.left_out = "DTensors of tensor parallelism"
    return f"part {cut}"
