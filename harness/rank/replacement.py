"""Replaces functions: for all callers or only for some, in one place or in all modules."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Callers = Callable[[FrameType], bool]
"""Says whether a replacement serves the code that a frame runs."""

Substitute = Callable[..., Any]
"""Is called instead of a function: with that function, and then with its arguments."""

EMULATION = "harness.rank.cuda_on_cpu"


def replace(
    owner: Any,
    name: str,
    substitute: Substitute,
    callers: Callers | None = None,
    everywhere: bool = False,
) -> None:
    """Replace ``owner.name``, or, if ``everywhere``, this function in all modules that have it.

    With ``callers``, all others still get the original. Several replacements of one function work
    in any order. Each call makes a new function: torch.compile refuses one under two names.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if callers is None or callers(caller()):
            return substitute(original, *arguments, **keywords)
        return original(*arguments, **keywords)

    if everywhere:
        replace_everywhere(original, lambda _: call)
    else:
        setattr(owner, name, call)


def caller() -> FrameType:
    """The frame that called a replaced function.

    Frames of replacements are skipped: where two packages replace one function, the outer
    replacement calls the inner one.
    """
    frame = sys._getframe(1)
    while frame.f_back and module_of(frame).startswith((__name__, EMULATION)):
        frame = frame.f_back
    return frame


def module_of(frame: FrameType) -> str:
    """The name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def from_package(package: str) -> Callers:
    """Accept callers whose code is in a package."""
    return lambda frame: f"{module_of(frame)}.".startswith(f"{package}.")


def replace_everywhere(function: Any, wrap: Callable[[Any], Any]) -> None:
    """Replace a function by ``wrap(function)`` in all modules that have it under its name."""
    wrapped, name = wrap(function), function.__name__
    for module in list(sys.modules.values()):
        space: dict[str, Any] = getattr(module, "__dict__", {})
        if space.get(name) is function:
            space[name] = wrapped


def replace_asynchronous(wrap: Callable[[Any], Any]) -> None:
    """Wrap the asynchronous save functions that are imported so far."""
    dcp = sys.modules.get("torch.distributed.checkpoint.state_dict_saver")
    if save := getattr(dcp, "async_save", None):
        replace_everywhere(save, wrap)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        plugin = sys.modules.get(f"{name}.plugins.io.async_plugin")
        if kind := getattr(plugin, "AsyncCheckpointIO", None):
            kind.save_checkpoint = wrap(kind.save_checkpoint)
