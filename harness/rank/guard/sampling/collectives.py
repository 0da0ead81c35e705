"""The collectives that a loop calls itself, by when it does.

Between a step and the next forward they average weights, as local SGD does; before a loss they
gather features, or rows; after a backward they reduce gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...events import Collective, NewCommunication, calling_frame, frames, instrument
from ..fence import Fence
from ..posting.posts import Post
from .roots import chain_of
from .samples import tensors_in

REASON = "the loop itself averages the weights after some steps, as local SGD does"

GATHERS = ("all_gather", "all_gather_into_tensor")
REDUCTIONS = ("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor")

PACKAGES = (
    "torch.distributed._",
    "torch.distributed.algorithms.",
    "torch.distributed.fsdp.",
    "torch.distributed.optim.",
    "torch.distributed.tensor.",
    "torch.distributed.utils",
    "torch.nn.",
    "deepspeed.",
    "megatron.",
)
"""What these gather or reduce are weights and gradients, or statistics of a layer."""


class Collectives:
    """What the collectives of this process say so far."""

    def __init__(self) -> None:
        self.reason = ""
        """Why copies may differ; empty without averages so far."""
        self.gathers = False
        """Whether tensors of all ranks were gathered, and then a loss was computed."""
        self.is_between = False
        """Whether collectives of this moment may average weights."""
        self.in_backward = False
        """Whether a backward runs."""
        self.reduced = 0
        """The values that were reduced after a backward, since the last step."""
        self._coarse = False
        """Whether gradients travel in 16 bits: the loop has a communication hook."""
        self._lossy = ""
        """A reduction that is no mean on purpose, such as PowerSGD."""
        self._has_stepped = False
        self._gathered: list[int] = []
        """How many operations autograd had noted before each gather."""
        self._sizes: set[int] = set()
        """The numbers of values of parameters."""
        self._total = self._values = 0
        self._watches = False

    def subscribe(self, fence: Fence) -> None:
        """Subscribe to collectives, in checked steps and where they may average weights."""

        def hears() -> bool:
            is_checked = fence.is_due() or fence.is_armed()
            may_average = not fence.trainings or self.is_between
            return is_checked or (may_average and fence.is_alive())

        is_alive, communicates = fence.is_alive, fence.guarded(self._communicates)
        instrument.on(Collective, before=fence.guarded(self.called), when=hears)
        instrument.on(NewCommunication, before=communicates, when=is_alive)

    def describe(self, post: Post) -> None:
        """Say in a post what the loop reduces and gathers itself."""
        post.losses.gathers, post.loop.reduced = self.gathers, self.reduced
        post.gradients.coarse, post.gradients.lossy = self._coarse, self._lossy
        post.loop.averages = post.loop.averages or self.reason

    def watch(self, parameters: Iterable[Any]) -> None:
        """Look at what is averaged from now on: the ranks of these parameters may train alone."""
        if not self._watches and not self.reason:
            sizes = [parameter.numel() for parameter in parameters]
            self._total, self._sizes = sum(sizes), set(sizes)
            self._watches = True

    def step_ended(self) -> None:
        """A step of the optimizer has ended."""
        self.is_between, self._values, self._has_stepped = self._watches, 0, True

    def backward_begins(self, root: Any) -> None:
        """A backward begins. What was gathered before its loss may be in it: the gathers of a log
        come later, perhaps before a package divides the loss."""
        self.is_between = False
        if self._has_stepped:  # of several optimizers, all use what was reduced
            self._has_stepped, self.reduced = False, 0
        if self._gathered:
            node = chain_of(root).node if isinstance(root, torch.Tensor) else None
            number = node._sequence_nr() if node is not None else 0
            self.gathers = self.gathers or not number or min(self._gathered) <= number
            self._gathered = []

    def _communicates(self, event: NewCommunication) -> None:
        """A wrapper gets a communication hook of the loop."""
        self._coarse, hook = True, event.hook
        if "powersgd" in getattr(hook, "__name__", "").lower():
            self._lossy = "PowerSGD"
        elif not getattr(hook, "__module__", "torch").startswith("torch."):
            self._lossy = "the loop's communication hook"

    def called(self, event: Collective) -> None:
        """A collective is called."""
        caller = calling_frame().f_globals.get("__name__", "")
        if self.in_backward or caller.startswith(PACKAGES):
            return
        if self.is_between and not _is_in_step():
            for tensor in tensors_in(event.values):
                if tensor.numel() in self._sizes or tensor.numel() == self._total:
                    self._values += tensor.numel()
            if self._values >= self._total / 2 > 0:
                self.reason, self._watches, self.is_between = REASON, False, False
        elif event.name in REDUCTIONS:
            self.reduced += sum(tensor.numel() for tensor in tensors_in(event.values))
        if event.name in GATHERS and not _is_in_step():
            sizes = [one.numel() for one in event.values if isinstance(one, torch.Tensor)]
            # A number of each rank is a loss or a count.
            if min(sizes, default=2) > 1:
                with torch.enable_grad():
                    node: Any = torch.zeros((), requires_grad=True).clone().grad_fn
                self._gathered.append(node._sequence_nr())


def _is_in_step() -> bool:
    """Whether an optimizer runs its step: what it gathers are weights, or gradients."""
    steps = (frame.f_locals.get("self") for frame in frames() if frame.f_code.co_name == "step")
    return any(isinstance(owner, torch.optim.Optimizer) for owner in steps)
