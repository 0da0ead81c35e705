"""A mode of torch that replaces devices in the arguments of all functions of torch."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from harness.rank.cuda_on_cpu.devices import Count, with_devices
from harness.rank.cuda_on_cpu.functions import FUNCTIONS

SPECIAL = (
    "torch.Tensor.to", "torch._C._nn._parse_to", "torch.Tensor.cuda", "torch.Tensor.pin_memory",
    "torch.device",
)  # fmt: skip
"""The functions whose arguments need more than another device."""

modes: list[Any] = []
"""The installed mode, if any."""


def enter_mode(count: Count, compiling: Callable[[], bool]) -> None:
    """Replace devices for all that this thread calls, except while torch.compile traces it."""
    from torch.overrides import TorchFunctionMode

    # Where a shim has replaced a method, torch gives its replacement to the mode.
    substitutes = {pkgutil.resolve_name(name): FUNCTIONS[name] for name in SPECIAL}

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            keywords = keywords or {}
            if compiling():
                return function(*arguments, **keywords)
            substitute = substitutes.get(function, with_devices)
            return substitute(count, function, *arguments, **keywords)

    modes.append(OnCpu())
    modes[-1].__enter__()


@contextmanager
def without_mode() -> Iterator[None]:
    """Remove the mode within the context, for compiled code: torch's compiler traces modes only in
    part, and compiles again in a recomputing backward, where torch has no mode."""
    if not modes:
        yield
        return
    from torch import overrides

    def replace(stack: Sequence[Any]) -> Sequence[Any]:
        before = overrides._get_current_function_mode_stack()
        for _ in before:
            overrides._pop_mode()
        for mode in stack:
            overrides._push_mode(mode)
        return before

    before = replace([m for m in overrides._get_current_function_mode_stack() if m not in modes])
    try:
        yield
    finally:
        replace(before)
