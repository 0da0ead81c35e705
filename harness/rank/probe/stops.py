"""Whether a loop stops gradients on purpose: then its loss need not fall as fast as they say."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from harness.rank.probe import compiled
from harness.rank.probe.on_cpu import replace_everywhere

OF_SAMPLERS = "torch.utils.data"
"""What draws the order of rows, and not something that a model has computed."""

INNER = ("torch", "harness")
"""Packages that detach tensors for their own purposes."""


def install(stopped: Callable[[bool], None]) -> None:
    """Call ``stopped`` when a script detaches a tensor that its weights lead to, or draws from what
    its model has computed, with whether it draws from a generator that it did not name. A single
    number may be detached to be logged."""
    import torch

    compiling = compiled.question()

    def depends(tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.requires_grad
            and not tensor.is_leaf
            and tensor.numel() > 1
        )

    def detaching(detach: Any) -> Any:
        @functools.wraps(detach)
        def watched(tensor: Any) -> Any:
            if compiling():
                return detach(tensor)
            if _caller().partition(".")[0] not in INNER and depends(tensor):
                stopped(False)
            return detach(tensor)

        return watched

    def multinomial(draw: Any) -> Any:
        @functools.wraps(draw)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if not compiling() and not _caller().startswith(OF_SAMPLERS):
                stopped(keywords.get("generator") is None)
            return draw(*arguments, **keywords)

        return watched

    def normal(draw: Any) -> Any:
        @functools.wraps(draw)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if not compiling() and any(map(depends, [*arguments, *keywords.values()])):
                stopped(keywords.get("generator") is None)
            return draw(*arguments, **keywords)

        return watched

    for name in ("detach", "detach_"):
        setattr(torch.Tensor, name, detaching(getattr(torch.Tensor, name)))
    replace_everywhere(torch.multinomial, multinomial)
    torch.Tensor.multinomial = multinomial(  # type: ignore[method-assign]
        torch.Tensor.multinomial
    )
    replace_everywhere(torch.normal, normal)


def _caller() -> str:
    """The module that has called the function that calls this."""
    return str(sys._getframe(2).f_globals.get("__name__", ""))
