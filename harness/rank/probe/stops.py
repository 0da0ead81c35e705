"""Notes whether a loop stops gradients on purpose: then they do not predict how the loss falls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from harness.rank.probe import compiled
from harness.rank.replacement import replace_everywhere

OF_SAMPLERS = "torch.utils.data"
"""The package whose samplers draw the order of rows: such draws do not count."""

INNER = ("torch", "harness")
"""Packages that detach tensors internally: such calls do not count."""


def install(stopped: Callable[[bool], None]) -> None:
    """Call ``stopped`` when a script detaches a tensor that depends on its weights, or samples from
    the model's output. The argument says whether it samples from the default generator. A single
    number may be detached, as for logging."""
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
    """The module that called the function that calls this one."""
    return str(sys._getframe(2).f_globals.get("__name__", ""))
