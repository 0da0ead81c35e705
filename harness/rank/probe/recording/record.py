"""The steps that a rank has recorded, and the one that it records now."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch

from harness.detectors.rows import leaves
from harness.rank.probe.exchange import Step
from harness.rank.training.layouts import local, plain

OF_MICRO_BATCHES = ("rows", "losses", "parts", "clips", "drops")
"""The lists of a step that have entries for its micro-batches, in order."""


class Record:
    """What happened in each step. ``now`` is the step that has begun."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.steps: list[Step] = []
        self.seen: list[list[str]] = []
        """The rows of each step; over an epoch, also of the steps that are not recorded."""
        self.in_backward = False
        self.begin()

    def is_open(self) -> bool:
        """Whether steps are still recorded; after the last one, only rows of an epoch are."""
        return len(self.steps) < self._count

    def begin(self) -> None:
        """Begin to record a step."""
        self.seen.append([])
        self.now = Step()
        self._trained: dict[str, int] = {}
        """The lengths of the step's lists after the last backward that left gradients."""
        self.finite = Finite()
        self.clipped: list[Any] = []
        """The parameters whose gradients were clipped last."""
        self.left: dict[int, float] = {}
        """By the parameter's id, the norms of the gradients before the step's first backward."""

    def forget(self) -> None:
        """Forget what the model was given since the last step."""
        self.seen[-1] = []
        self.now.rows, self.now.unused, self.now.places = [], set(), []

    def skip(self) -> None:
        """Discard a step that was not taken, but note that and where it overflowed."""
        skipped, overflow = self.now.skipped + 1, self.finite.place
        self.begin()
        self.now.skipped, self.now.overflow = skipped, overflow

    def keep(self) -> None:
        """Keep the step that was taken, and begin the next one."""
        self.steps.append(self.now)
        self.begin()

    def note_stop(self, drew: bool) -> None:
        """Note that the script stopped gradients on purpose, or sampled from the model's output."""
        if not self.in_backward:
            self.now.stops = True
            self.now.draws |= drew

    def note_trained(self) -> None:
        """Note that a backward has left gradients."""
        self._trained = {what: len(getattr(self.now, what)) for what in OF_MICRO_BATCHES}

    def note_cleared(self, parameters: Iterable[Any]) -> None:
        """Note how much of the step belongs to micro-batches whose gradients were cleared: a
        rehearsal before the loop is no part of a step."""
        gradients = (local(p.grad) for p in parameters if p.grad is not None)
        if self._trained and not any(bool(gradient.any()) for gradient in gradients):
            self.now.cleared, self.now.raw = self._trained, None
            self._trained, self.clipped, self.left = {}, [], {}


class Finite:
    """Finds where the numbers of a step stop being finite: the first module with an output, or a
    gradient of its output, that is not finite."""

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
