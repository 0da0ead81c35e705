"""How a layout tells what this rank has of a parameter, and where its gradients are."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Change = Callable[[Any], Any]

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What DDP, torch.compile, FSDP1 and checkpointing put into the names of parameters."""


def plain(name: str) -> str:
    """The name of a parameter without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def is_compiled(module: Any) -> bool:
    """Whether calling a module runs compiled code."""
    compiled = module.__dict__.get("_compiled_call_impl")
    return compiled is not None or type(module).__name__ == "OptimizedModule"


def same(tensor: Any) -> Any:
    return tensor


def local(tensor: Any) -> Any:
    """What this rank has of a tensor: the shard of a DTensor."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


def living(is_kind: Callable[[type], bool]) -> list[Any]:
    """The objects of this process whose class is of a kind. None is asked itself: that may call a
    property of a proxy."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if is_kind(kind)}
    return [one for one in objects if type(one) in kinds] if kinds else []


def instances(module: str, name: str) -> list[Any]:
    """The objects of a class of a module, if that is imported."""
    base = getattr(sys.modules.get(module), name, None)
    return [] if base is None else living(lambda kind: issubclass(kind, base))


def values_of(tensor: Any, start: int, count: int) -> Any:
    """A range of the values of a tensor that is whole."""
    return tensor.detach().reshape(-1)[start : start + count]


@dataclass
class Described:
    """A parameter, as other ranks and the judge know it."""

    name: str
    numel: int
    """Values of the whole parameter."""
    size: int
    """Values that this rank has of the weight."""
    begin: int
    end: int
    """The range of the flat parameter that this rank updates."""
    ranks: list[int]
    """The ranks whose gradients are averaged; empty if no wrapper says so."""
    copy: str
    """Ranks with the same text, and the same name, have copies of the same values."""
    optimized: bool
    """Whether the optimizer has it."""
    trained: bool
    """Whether it requires a gradient."""
    dtype: str
    left_out: str = ""
    """Why its gradients are not compared; empty if they are."""
    same_rows: bool = False
    """Whether some of ``ranks`` read the same rows on purpose, as those of tensor parallelism."""
    part: str = ""
    """Which part of a weight it is that tensor parallelism splits, or of which stage of a pipeline;
    empty if it is a whole one. Gradients are averaged among ranks with the same part."""
    stages: int = 1
    """Stages of a pipeline that share the weight, among ``ranks``: each computes a part of its
    gradient, and uses the sum."""
    master: str = ""
    """The type of the copy that the optimizer steps; empty if it steps the weight itself."""


@dataclass
class Master:
    """The values by which an optimizer steps a parameter, such as a copy of it in fp32: a range of
    a tensor of its own. The weight of the model is this copy, rounded."""

    optimizer: int
    """The id of that optimizer."""
    tensor: Any
    start: int
    count: int
    rounded: Callable[[], Any]
    """What the model has of these values, flat."""

    def of(self, tensor: Any) -> Any:
        """The range of the optimizer's tensor, or of what belongs to it, as its gradient."""
        return tensor.detach().reshape(-1)[self.start : self.start + self.count]


@dataclass
class Share:
    """What this rank has of a parameter."""

    shard: str = ""
    """Which part of the weight it has: ranks with the same part have copies of it."""
    hooked: Any = None
    """The tensor whose hook gets the gradient that this rank computes; None: there is none."""
    computed: Change = same
    """The parameter's gradient in the tensor that the hook gets, flat or in the order of shards."""
    used: Change | None = None
    """By an optimizer, what this rank has of the gradient that it uses, if that is not the
    parameter's own ``grad``."""
    is_copy: bool = False
    """Whether other ranks have copies of the weight, although its gradients are left out."""
    weight: Callable[[], Any] | None = None
    """What this rank has of the weight, if the parameter has other values at times."""
    steps: bool = True
    """Whether the optimizer itself moves this parameter, or its copy, by a ``grad``."""
    master: Master | None = None
    """The copy that the optimizer steps; None if it steps the parameter."""


class Layout:
    """One way to split parameters: of a package, or of a part of torch.

    It is constructed once, when the modules of this process are known, and may rename parameters.
    """

    package = "torch"
    """Whose way it is."""

    def __init__(self, modules: Any) -> None:
        self.modules = modules

    def share(self, parameter: Any, described: Described) -> Share | None:
        """What this rank has of a parameter; None if this layout does not split it.

        It completes the description. ``left_out`` says why gradients are not compared.
        """
        raise NotImplementedError
