"""How a layout tells what this rank has of a parameter, and where its gradients are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .posts import Described

Change = Callable[[Any], Any]


def same(tensor: Any) -> Any:
    return tensor


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
    """What the model has of these values."""

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
