"""How a layout tells what this rank has of a parameter, and where its gradients are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .posts import Described


@dataclass
class Share:
    """What this rank has of a parameter."""

    shard: str = ""
    """Which part of the weight it has: ranks with the same part have copies of it."""
    hooked: Any = None
    """The tensor whose hook gets the gradient that this rank computes; None: there is none."""
    used: Callable[[Any], Any] | None = None
    """By an optimizer, what this rank has of the gradient that it uses, if that is not the
    parameter's own ``grad``."""
    is_copy: bool = False
    """Whether other ranks have copies of the weight, although its gradients are left out."""
    steps: bool = True
    """Whether the optimizer itself moves this parameter, by its ``grad``."""


class Layout:
    """One way to split parameters: of a package, or of a part of torch.

    It is constructed once, when the modules of this process are known, and may rename parameters.
    """

    def __init__(self, modules: Any) -> None:
        self.modules = modules

    def share(self, parameter: Any, described: Described) -> Share | None:
        """What this rank has of a parameter; None if this layout does not split it.

        It completes the description. ``left_out`` says why gradients are not compared.
        """
        raise NotImplementedError
