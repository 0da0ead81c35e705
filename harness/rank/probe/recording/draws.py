"""The random numbers of a rank: seeds them, switches dropout off, as layouts could not be compared
otherwise, and notes what a model draws, and whether its loop stops gradients on purpose.

Without a probe, each process begins with a different seed. Here all ranks are forked from one
process and would draw the same numbers, which would hide that each rank splits or shuffles the data
by itself. So every rank gets its own seed, and rank 0 the same seed in all layouts. A script that
sets a seed replaces it. Dropout still draws its random numbers, except in compiled code.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from harness.rank.events import Patches, calling_frame, compiler_question
from harness.rank.probe.recording.record import Record
from harness.rank.probe.recording.samples import digest

FIRST_SEED = 20_260_000
"""The seed of rank 0."""

OF_SAMPLERS = "torch.utils.data"
"""The package whose samplers draw the order of rows: such draws do not count."""

INNER = ("torch", "harness", "deepspeed.runtime.activation_checkpointing")
"""Packages that detach tensors internally, and what recomputes: such calls do not count."""


def seed(rank: int) -> None:
    """Seed Python, numpy and torch on the CPU; torch seeds all GPUs alike."""
    import numpy

    random.seed(FIRST_SEED + rank)
    numpy.random.seed(FIRST_SEED + rank)
    torch.default_generator.manual_seed(FIRST_SEED + rank)


def is_seeded(rank: int) -> bool:
    """Whether the script has seeded torch since."""
    return torch.default_generator.initial_seed() != FIRST_SEED + rank


class Draws:
    """The random numbers that the model draws in its call."""

    def __init__(self, record: Record) -> None:
        self._record, self._is_compiling = record, compiler_question()
        self._state = ""
        """The state of the generators in the model's call, after the last dropout."""
        self._step = record.now
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
            self._step.draws = True

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
            self._record.now.rates.add(p)
            self._record.now.drops.append(_generator(input))
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
            self._record.now.rates.add(dropout_p)
            self._record.now.drops.append(_generator(query))
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


def note_stops(stopped: Callable[[bool], None]) -> None:
    """Call ``stopped`` when a script detaches a tensor that depends on its weights, or samples from
    the model's output. The argument says whether it samples from the default generator. A single
    number may be detached, as for logging."""

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
