"""How often a step counts the loss of each micro-batch.

The gradient that arrives at the value of a loss function is the weight of that loss in the step: it
must be 1 by the number of micro-batches, whoever divides.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from ....detectors.rows import IGNORED
from ...events import EngineBackward, LossValue, OutputGradient, instrument
from ...training.callers import user_frames
from ..fence import Fence
from ..posting.posts import Post
from ..process import captures
from .roots import at_arrival, chain_of, factor_of_terms
from .samples import bit_sum, on_device, stacked

MOST_CALLS = 1000
"""Losses that are kept without a backward: a loop that went on with losses, and trained no more,
kept each of them."""

SHARE = 1e-6
"""How far a number may be from 1 by the number of micro-batches, by rounding in fp32: trl divides
its own mean so."""


@dataclass
class Loss:
    """The value of one call of a loss function, and the gradient that arrives there."""

    value: Tensor
    count: Any = 1.0
    """The number of targets, if the value is a sum."""
    weight: Any = None
    targets: Any = None
    """Of a mean: how many targets count, and how many there are."""
    targets_sum: Any = None
    """The sum of the bits of all targets."""
    is_handed: bool = False
    """Whether DeepSpeed's engine got it."""
    number: float = 1.0
    """What the loop multiplied it by before, if DeepSpeed divides it by nothing."""


@dataclass
class MicroBatch:
    """What one backward began from."""

    root: Any
    """None if it is no loss."""
    calls: list[Loss]
    scale: Any
    loss: Loss | None = None
    """Its loss without what a package or the loop multiplies it by: what was handed to DeepSpeed,
    or a mean."""
    number: float = 1.0
    """By which number the loop multiplies that mean."""
    factor: float = 1.0
    """By which number all terms of the loss are multiplied."""
    weight: float = 1.0
    """Which part of the number that multiplies the loss may be the loop's own weight."""
    goes_on: bool = False
    """Whether it goes on with the gradient that another rank computed."""
    ratios: list[Tensor] = field(default_factory=list)
    """How many times that gradient DeepSpeed's engine has made of it."""


class Losses:
    """The losses of the micro-batches of a step."""

    def __init__(self) -> None:
        self.begin()

    def subscribe(self, fence: Fence) -> None:
        """Subscribe to losses, and to what DeepSpeed's engine makes of them."""

        def called(event: LossValue) -> None:
            self.called(event.value, event.arguments, event.keywords, event.owner)

        def hand(event: EngineBackward) -> None:
            engine, (loss, *_) = event.owner, event.values
            self.note_unscaled(loss)
            divides = event.keywords.get("scale_wrt_gas", True)
            divides = divides and not getattr(engine, "inside_no_sync_ctxt", False)
            if fence.is_due() and divides and not engine.fp16_enabled():
                self.hand(loss, engine.gradient_accumulation_steps())

        def pass_on(event: OutputGradient) -> None:
            if event.value is not None and event.value is not event.arguments[0]:
                self.pass_on(event.arguments[0], event.value)

        on = instrument.on
        on(LossValue, after=fence.guarded(called), when=fence.is_due)
        on(EngineBackward, before=fence.guarded(hand), when=fence.is_alive)
        on(OutputGradient, after=fence.guarded(pass_on), when=fence.is_armed)

    def begin(self) -> None:
        """Forget the losses of the last step."""
        self._calls: deque[Loss] = deque(maxlen=MOST_CALLS)
        self._micro: list[MicroBatch] = []
        self._handed: Loss | None = None
        self._unscaled: Tensor | None = None
        """What DeepSpeed's engine got for the next backward, before it multiplies that."""
        self.uncounted = ""
        """Why the losses of ``tensor`` are not counted; empty if they are."""
        self.are_whole = False
        """Whether the values of ``tensor`` are whole losses, not those of torch's functions."""
        self._roots: list[Tensor] = []
        self._cleared = 0
        self._files: set[str] = set()
        """Of the code that has called loss functions and backwards."""

    def cleared(self) -> None:
        """Note that the gradients of the backwards so far were cleared."""
        self._cleared = len(self._micro)
        self._roots = []

    def spoil(self) -> None:
        """Make the losses of this step unclear."""
        self._micro = [MicroBatch(None, [], 1.0)]

    def called(
        self,
        value: Any,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        smoother: Any = None,
    ) -> None:
        """Note the value of a loss function. ``smoother`` is the Trainer's label smoothing."""
        if not _is_plain(value) or not value.requires_grad or value.numel() != 1:
            return
        self._files |= {frame.f_code.co_filename for frame in user_frames()}
        loss = Loss(value.detach())
        if smoother is not None:
            loss.count = _smoothed_count(smoother, *arguments, **keywords)
        elif keywords.get("reduction", "mean") == "sum" or keywords.get("size_average") is False:
            loss.count, _ = _targets(arguments, keywords)
        elif "transformers.trainer" in sys.modules:
            loss.targets = _targets(arguments, keywords)
        self._calls.append(loss)
        _weigh(loss, value, _target(arguments, keywords) if smoother is None else None)

    def note_unscaled(self, value: Any) -> None:
        """Note the loss that DeepSpeed's engine multiplies by its scale: in fp16 the product may be
        infinite, which harms nobody, as gradients do not depend on it."""
        is_loss = _is_plain(value) and value.numel() == 1
        self._unscaled = value.detach() if is_loss else None

    def hand(self, value: Any, parts: int) -> None:
        """Note that a loss is handed to DeepSpeed's engine, which begins a backward with it, and
        divides it by so many ``parts``. If that is 1, the loop may have divided it."""
        if _is_plain(value) and value.requires_grad and not value.dim():
            chain = chain_of(value)
            number = chain.factors[0] if parts == 1 and chain.follows else 1.0
            self._handed = Loss(value.detach(), is_handed=True, number=number)
            _weigh(self._handed, value)

    def pass_on(self, before: Tensor, after: Tensor) -> None:
        """Note what a hook of DeepSpeed makes of the gradient that arrives at an output. It counts
        for the losses that were computed from it: their weights are known by then."""
        if not self._micro:
            return
        micro = self._micro[-1]
        ratio = after.detach().float().norm() / before.detach().float().norm()
        micro.ratios.append(ratio)
        for loss in (*micro.calls, micro.loss):
            if loss is not None and loss.weight is not None:
                loss.weight = loss.weight * ratio

    def backward(self, root: Any, scaler: Any, gradient: Any = None) -> None:
        """Note that a backward begins from ``root``, with the scale of a loss scaler, or with a
        gradient that another rank computed."""
        calls = list(self._calls)
        self._calls.clear()
        self._files |= {frame.f_code.co_filename for frame in user_frames()}
        is_loss = self.note_root(root)
        scale = getattr(scaler, "_scale", None) if scaler and scaler.is_enabled() else None
        scale = 1.0 if scale is None else scale.detach().clone()
        micro = MicroBatch(root.detach() if is_loss else None, calls, scale)
        self._micro.append(micro)
        micro.loss, self._handed = self._handed, None
        if is_loss and root.requires_grad:
            chain = chain_of(root)
            micro.factor, micro.weight = factor_of_terms(chain), chain.weight(self._files)
            if chain.is_mean and micro.loss is None:
                micro.loss = loss = Loss(root.detach())
                micro.number = chain.factor
                at_arrival(root, lambda weight: setattr(loss, "weight", weight.abs()), chain.node)
        elif gradient is not None and not is_loss:
            micro.goes_on = True

    def note_root(self, root: Any) -> bool:
        """Note what a backward begins from; returns whether it is a loss."""
        is_loss = _is_plain(root) and root.numel() == 1 and root.is_floating_point()
        unscaled, self._unscaled = self._unscaled, None
        if is_loss:
            self._roots.append(root.detach() if unscaled is None else unscaled)
        return is_loss

    def roots(self) -> Tensor | None:
        """What the backwards began from, whatever it is made of; None without one."""
        roots = self._roots
        return torch.cat([on_device(one, roots[0].device) for one in roots]) if roots else None

    def describe(self, post: Post, batches: int) -> None:
        """Say in a post what is known of the losses of this step, for which so many batches were
        read."""
        facts, is_separate = post.losses, post.losses.separate
        losses = None if is_separate else self.tensor(bool(post.gradients.dropped), batches)
        facts.uncounted = "separate" if is_separate else self.uncounted
        facts.whole_losses = self.are_whole
        facts.goes_on = bool(self._micro) and all(one.goes_on for one in self._micro)
        factors = {one.factor for one in self._micro}
        facts.factor = factors.pop() if len(factors) == 1 else 1.0
        weights = {one.weight for one in self._micro}
        facts.weight = weights.pop() if len(weights) == 1 else float(not weights)
        tensors = {
            "losses": losses,
            "roots": self.roots(),
            "targets": self.targets(),
            "targets_sum": self.targets_sum(),
            "passed": self.ratios(),
        }
        post.tensors.update({name: one for name, one in tensors.items() if one is not None})

    def tensor(self, with_cleared: bool = True, batches: int = 0) -> Tensor | None:
        """For each micro-batch: root, value, weight, count and scale. None if one is unclear: its
        loss is made of several calls, or of none. A call whose value nobody uses does not count,
        and those of cleared gradients only if they are missing in the step.

        A loss of no call is its own value if DeepSpeed got it, or if it is a plain mean of one of
        so many ``batches``, perhaps divided by their number: ``are_whole`` says so.
        """
        micro_batches = self._micro if with_cleared else self._micro[self._cleared :]
        micro_batches = [micro for micro in micro_batches if not micro.goes_on]
        # Without batches of their own, these may be losses of one batch, which are added.
        have_batches = 2 * batches > len(micro_batches)
        rows, whole_rows = [], []
        self.uncounted = "none"
        for micro in micro_batches:
            weighted = [call for call in micro.calls if call.weight is not None]
            if len(weighted) > 1:
                self.uncounted = "several"
            if micro.root is None:
                return None
            if len(weighted) == 1:
                rows += _row(micro.root, weighted[0], micro.scale)
            loss = micro.loss
            if loss is None or loss.weight is None or weighted:
                continue
            is_part = any(abs(micro.number * n - 1) < SHARE for n in (1, len(micro_batches)))
            if (have_batches and is_part) or loss.is_handed:
                by_loop = loss.number if abs(loss.number * len(micro_batches) - 1) < SHARE else 1
                weight = loss.weight * by_loop
                unit = Loss(torch.ones_like(weight), weight=weight)
                whole_rows += _row(weight, unit, micro.scale)
        count = 5 * len(micro_batches)
        self.are_whole = len(whole_rows) == count
        rows = whole_rows if self.are_whole else rows
        if not rows or len(rows) != count:
            return None
        self.uncounted = ""
        return torch.cat(rows)

    def targets(self) -> Tensor | None:
        """How many targets count, and how many there are, of each micro-batch whose loss is a mean
        over classes; None if one is not."""
        calls = [[call for call in one.calls if call.weight is not None] for one in self._micro]
        if not calls or any(len(each) != 1 or each[0].targets is None for each in calls):
            return None
        device = calls[0][0].value.device
        pairs = [each[0].targets for each in calls]
        return torch.cat([on_device(value, device) for pair in pairs for value in pair])

    def targets_sum(self) -> Tensor | None:
        """The sum of the bits of the targets of each loss; None if one has none."""
        sums = [
            call.targets_sum for one in self._micro for call in one.calls if call.weight is not None
        ]
        return None if not sums or any(one is None for one in sums) else stacked(sums)

    def ratios(self) -> Tensor | None:
        """How many times the gradients of other ranks this one goes on with; None without any."""
        ratios = [ratio for one in self._micro if one.goes_on for ratio in one.ratios]
        return torch.cat([on_device(one, ratios[0].device) for one in ratios]) if ratios else None


def _targets(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, int]:
    """How many targets of a loss function count, and how many there are."""
    target = _target(arguments, keywords)
    ignored = keywords.get("ignore_index", IGNORED)
    size = target.numel()
    return (size if target.is_floating_point() else (target != ignored).sum()), size


def _target(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    return arguments[1] if len(arguments) > 1 else keywords["target"]


def _row(root: Tensor, loss: Loss, scale: Any) -> list[Tensor]:
    values = (root, loss.value, loss.weight, loss.count, scale)
    return [on_device(value, loss.value.device) for value in values]


def _weigh(loss: Loss, value: Tensor, target: Any = None) -> None:
    """Note the gradient that arrives at a value, and which targets it has."""

    def hook(gradient: Tensor) -> None:
        loss.weight = gradient.detach()
        if _is_plain(target) and not captures():
            with contextlib.suppress(Exception):  # it is called within the training's backward
                loss.targets_sum = bit_sum(target)

    value.register_hook(unserializable_hook(hook))


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor of this rank: what is done with a DTensor may be a collective."""
    return isinstance(value, Tensor) and not hasattr(value, "placements")


def _smoothed_count(
    smoother: Any,
    output: Any,
    labels: Tensor,
    shift_labels: bool = False,
    items: Any = None,
    **keywords: Any,
) -> Any:
    """As which part of a mean the value of the Trainer's label smoothing counts: some releases
    divide the sum by the tokens of all micro-batches."""
    items = keywords.get("num_items_in_batch", items)
    if items is None:
        return 1.0
    targets = labels[..., 1:] if shift_labels else labels
    return (targets != smoother.ignore_index).sum() / items
