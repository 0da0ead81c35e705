"""Relations between a model's eager code and what ``torch.compile`` makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.rank.models.answer import NoAnswer
from harness.rank.models.judging import require_equal
from harness.rank.models.subject import Subject, gradient

OFF = "TORCHDYNAMO_DISABLE"
"""Keeps workers from compiling in other relations."""


def compile(subject: Subject) -> str | None:
    """Traced forward and backward passes have the gradient of eager code. No kernels are made."""
    return _compare(subject, "aot_eager")


def inductor(subject: Subject) -> str | None:
    """The kernels that Inductor makes have the gradient of eager code."""
    return _compare(subject, "inductor")


def _compare(subject: Subject, backend: str) -> str | None:
    inputs, (expected, allowed) = subject.loss_inputs(), subject.gradient
    with _compiling(subject.module, backend):
        before = _graphs()
        actual = gradient(subject.module, inputs)
        graphs = _graphs() - before
    if not graphs:
        raise NoAnswer("torch.compile compiled nothing of it")
    require_equal(actual, expected, allowed, f"compiled by {backend}, the gradient")
    return None


@contextmanager
def _compiling(module: Any, backend: str) -> Iterator[None]:
    """Compile the calls of a model, in this process alone."""
    import torch._dynamo
    import torch._inductor.config

    before = os.environ.pop(OFF, None)
    torch._dynamo.reset()
    module.compile(backend=backend)
    try:
        with torch._inductor.config.patch(compile_threads=1):
            yield
    finally:
        module._compiled_call_impl = None
        torch._dynamo.reset()
        if before is not None:
            os.environ[OFF] = before


def _graphs() -> int:
    """How many graphs this process has compiled."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
