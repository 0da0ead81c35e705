"""Notes whether a loop stops gradients on purpose: then they do not predict how the loss falls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.rank.events import Patches, calling_frame

OF_SAMPLERS = "torch.utils.data"
"""The package whose samplers draw the order of rows: such draws do not count."""

INNER = ("torch", "harness", "deepspeed.runtime.activation_checkpointing")
"""Packages that detach tensors internally, and what recomputes: such calls do not count."""


def install(stopped: Callable[[bool], None]) -> None:
    """Call ``stopped`` when a script detaches a tensor that depends on its weights, or samples from
    the model's output. The argument says whether it samples from the default generator. A single
    number may be detached, as for logging."""
    import torch

    def depends(tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.requires_grad
            and not tensor.is_leaf
            and tensor.numel() > 1
        )

    def detach(detach: Any, /, tensor: Any) -> Any:
        if depends(tensor) and not f"{_caller()}.".startswith(tuple(f"{one}." for one in INNER)):
            stopped(False)
        return detach(tensor)

    def multinomial(draw: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if not _caller().startswith(OF_SAMPLERS):
            stopped(keywords.get("generator") is None)
        return draw(*arguments, **keywords)

    def normal(draw: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if any(map(depends, [*arguments, *keywords.values()])):
            stopped(keywords.get("generator") is None)
        return draw(*arguments, **keywords)

    patches = Patches()
    for name in ("detach", "detach_"):
        patches.wrap(torch.Tensor, name, detach, eager=True)
    patches.wrap(torch.Tensor, "multinomial", multinomial, eager=True)
    patches.wrap_everywhere(torch.multinomial, multinomial, eager=True)
    patches.wrap_everywhere(torch.normal, normal, eager=True)


def _caller() -> str:
    """The module that called the function that is wrapped."""
    return str(calling_frame().f_globals.get("__name__", ""))
