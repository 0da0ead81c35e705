"""Switches dropout off, as layouts could not be compared otherwise, and notes what a model draws.

Dropout still draws its random numbers, except in compiled code.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.rank.events import Patches, compiler_question
from harness.rank.probe.recording.record import Record
from harness.rank.probe.recording.samples import digest


class Draws:
    """The random numbers that the model draws in its call."""

    def __init__(self, record: Record) -> None:
        self._record, self._is_compiling = record, compiler_question()
        self._state = ""
        """The state of the generators in the model's call, after the last dropout."""
        self._step: dict[str, Any] = {}
        """The record of the step in which the call began."""

    def install(self) -> None:
        """Replace dropout, before anything of the script runs."""
        from torch.nn import functional

        patches = Patches()
        patches.wrap_everywhere(functional.dropout, self._dropout)
        patches.wrap_everywhere(functional.scaled_dot_product_attention, self._attention)

    def begin(self) -> None:
        """The model's call begins. A compiled function may also take the step, with which the next
        record begins."""
        self._state, self._step = generators(), self._record.now

    def end(self) -> None:
        """The model's call ends."""
        self._note()
        self._state = ""

    def _note(self) -> None:
        """Note whether the model drew random numbers other than dropout's."""
        if self._state and generators() not in (self._state, _seeded()):
            self._step["draws"] = True

    def _dropout(
        self,
        dropout: Any,
        /,
        input: Any,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if training and p > 0 and not self._is_compiling():
            self._record.now["rates"].add(p)
            self._record.now["drops"].append(_generator(input))
            self._note()
            dropout(input.detach(), p, True)
            self._state = self._state and generators()
        return input

    def _attention(
        self,
        attention: Any,
        /,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **keywords: Any,
    ) -> Any:
        if dropout_p > 0 and not self._is_compiling():
            self._record.now["rates"].add(dropout_p)
            self._record.now["drops"].append(_generator(query))
        return attention(query, key, value, attn_mask, 0.0, is_causal, **keywords)


def _generator(tensor: Any) -> str:
    """The state of the generator of a tensor's device."""
    on_gpu = tensor.device.type == "cuda"
    return digest(torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state())


def _seeded() -> str:
    """The state that the generators have after their last seed. A model may seed them in its call,
    as DeepSpeed's pipelines do before each layer: that draws nothing."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    on_gpu = []
    if torch.cuda.is_initialized():
        seeded_on_gpu = torch.Generator("cuda").manual_seed(torch.cuda.initial_seed())
        on_gpu = [seeded_on_gpu.get_state()]
    return " ".join(map(digest, [generator.get_state(), *on_gpu]))


def generators() -> str:
    """The state of the generators that a model may draw from."""
    on_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return " ".join(map(digest, [torch.get_rng_state(), *on_gpu]))
