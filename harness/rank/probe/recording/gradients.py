"""Records how a step comes to its gradients: its backwards, and what scales and clips them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.bugs.api.numbers import near
from harness.rank import events
from harness.rank.probe.recording.micro_batches import MicroBatches
from harness.rank.probe.recording.parameters import full, norm
from harness.rank.probe.recording.record import Record
from harness.rank.training.layouts import local

MUCH = 0.9
"""If clipping by value leaves more of the norm, it is not asked whether a scaler still multiplied
the gradients."""

SCALED = 0.01
"""How far (as a fraction) gradients that a scaler multiplies may be from that multiple."""


class Gradients:
    """Records the backwards, the clippings and the loss scale of each step."""

    def __init__(self, record: Record, micro_batches: MicroBatches) -> None:
        self._record, self._micro_batches = record, micro_batches

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""
        on, record = events.instrument.on, self._record

        def is_outermost() -> bool:  # a mode of torch calls a backward once more
            return record.is_open() and not record.in_backward

        on(events.Backward, around=self._backward, when=is_outermost)
        on(events.Clip, around=self._clip)
        on(events.ValueClip, around=self._clip)
        on(events.Unscale, around=self._unscaled)
        on(events.ScalerStep, around=self._scaled)

    def _backward(self, event: events.Backward, call: Callable[[], Any]) -> Any:
        record, parameters = self._record, self._micro_batches.parameters
        learnt = list(self._micro_batches.names.items())
        record.note_cleared(parameters())
        if not record.now.parts:
            record.left = {id(p): _norm([p]) for _, p in learnt}
        if event.gradient is None:  # otherwise a pipeline's stage continues a backward
            record.now.losses.append(float(full(event.owner).sum()))
        record.now.parts.append({})
        record.in_backward = True
        try:
            return call()
        finally:
            record.in_backward = False
            if any(p.grad is not None for p in parameters()):
                record.note_trained()
            record.now.left = _norm(p for _, p in learnt)

    def _clip(self, event: events.Clip, call: Callable[[], Any]) -> Any:
        """Record a clipping, and the gradients before the first one of a step."""
        record, names = self._record, self._micro_batches.names.names
        if record.now.raw is None and record.is_open():
            record.now.raw = {
                names.get(id(p), f"parameter {n}"): full(p.grad)
                for n, p in enumerate(event.parameters)
                if p.grad is not None
            }
        by_value = isinstance(event, events.ValueClip)
        before = _norm(event.parameters) if by_value else 0.0
        value = call()
        # A limit of values that the loop multiplies by the scale of the loss clips hardly one.
        if not by_value or _norm(event.parameters) < MUCH * before:
            record.clipped = list(event.parameters)
        size = before if by_value else float(full(value))
        record.now.clips.append((float(event.max_norm), size, by_value))
        return value

    def _unscaled(self, event: events.Unscale, call: Callable[[], Any]) -> Any:
        late = self._late(event.owner)
        value = call()
        step = self._record.now
        step.clipped_scaled = step.clipped_scaled or late()
        return value

    def _scaled(self, event: events.ScalerStep, call: Callable[[], Any]) -> Any:
        record = self._record
        record.now.scaled = event.owner.is_enabled()
        if event.owner.is_enabled():
            record.now.scale = getattr(event.owner, "_init_scale", 0.0)
        before = len(record.steps), record.now.skipped
        begun, late = record.now, self._late(event.owner)
        value = call()
        begun.clipped_scaled = begun.clipped_scaled or late()
        if record.is_open() and (len(record.steps), record.now.skipped) == before:
            record.skip()
        return value

    def _late(self, scaler: Any) -> Callable[[], float]:
        """A function that returns the scale of the loss if gradients were clipped before this call
        and divided by the scale since; otherwise 0."""
        clipped, before = self._record.clipped, _norm(self._record.clipped)
        scale = scaler.get_scale() if clipped and scaler.is_enabled() else 1.0

        def late() -> float:
            divided = before > 0 and near(before, _norm(clipped) * scale, share=SCALED)
            return scale if divided and scale != 1 else 0.0

        return late


def _norm(parameters: Iterable[Any]) -> float:
    """The norm of this rank's gradients of some parameters."""
    return norm(float(local(p.grad).norm()) for p in parameters if p.grad is not None)
