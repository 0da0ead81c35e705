"""Finds where the numbers of a step stop being finite: the first module with an output, or a
gradient of its output, that is not finite."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch

from harness.detectors.rows import leaves
from harness.rank.training.layouts import local, plain


class Finite:
    """Looks at the outputs of modules and at the gradients of these outputs, until one is not
    finite."""

    def __init__(self) -> None:
        self.place = ""
        """The first one that is not finite, in words; empty if all is finite."""
        self._after = ""
        """The module that was called after the one whose gradient comes next."""
        self._last: Any = None
        """The last tensor seen: a container returns the output of its last module."""

    def look(self, root: Any, module: Any, output: Any) -> None:
        """Look at the output of a module that was called in a training step."""
        for _, tensor in leaves(output, is_dataclass):
            if not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
                continue
            if self.place or tensor is self._last:
                return
            self._last = tensor
            with suppress(Exception):  # inside torch.func, a tensor has no numbers
                if not _is_finite(tensor):
                    self.place = f"the output of {_called(root, module)}{_in(tensor)}"
                elif tensor.requires_grad:
                    tensor.register_hook(partial(self._back, root, module))

    def _back(self, root: Any, module: Any, gradient: Any) -> None:
        if self.place or gradient is None:
            return
        title = _called(root, module)
        if _is_finite(gradient):
            self._after = title
            return
        after = f", while that of {self._after} is" if self._after else ", as the loss gives it"
        self.place = f"the gradient of the output of {title}{_in(gradient)}{after}"


def _called(root: Any, module: Any) -> str:
    """The name of a module in the model, and its class."""
    pairs = root.named_modules() if root is not None else ()
    name = next((plain(name) for name, each in pairs if each is module), "")
    kind = type(module).__name__
    return f"{name} ({kind})" if name else kind


def _in(tensor: Any) -> str:
    """The type of a tensor, if it has a small range."""
    return " in fp16" if tensor.dtype == torch.float16 else ""


def _is_finite(tensor: Any) -> bool:
    return bool(local(tensor.detach()).isfinite().all())
