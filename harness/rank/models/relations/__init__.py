"""Relations that must hold for every model, tested without another reference.

A relation is a function that takes a ``Subject``. If the relation holds, it returns a sentence or
None; otherwise it raises ``Wrong``, ``Refused`` or ``NoAnswer``. Other errors come from the model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.rank.models.subject import Subject

Relation = Callable[["Subject"], str | None]


@dataclass(frozen=True)
class Question:
    """Where a relation is defined, and what it needs."""

    module: str
    ranks: int = 1

    def relation(self, name: str) -> Relation:
        """Import and return the function."""
        function: Relation = getattr(importlib.import_module(self.module), name)
        return function


_HERE = "harness.rank.models.relations"

QUESTIONS: Mapping[str, Question] = {
    "loss": Question(f"{_HERE}.gradients"),
    "accumulation": Question(f"{_HERE}.gradients"),
    "checkpointing": Question(f"{_HERE}.gradients"),
    "padding_right": Question(f"{_HERE}.sequences"),
    "padding_left": Question(f"{_HERE}.sequences"),
    "packing": Question(f"{_HERE}.sequences"),
    "generation": Question(f"{_HERE}.sequences"),
    "save_load": Question(f"{_HERE}.checkpoints"),
    "fp32_kept": Question(f"{_HERE}.checkpoints"),
    "lora": Question(f"{_HERE}.gradients"),
    "zero_init": Question(f"{_HERE}.zero"),
    "ddp": Question(f"{_HERE}.replicas", ranks=2),
    "fsdp2": Question(f"{_HERE}.replicas", ranks=2),
    "zero3": Question(f"{_HERE}.zero", ranks=2),
    "tensor_parallel": Question(f"{_HERE}.plans", ranks=2),
    "expert_parallel": Question(f"{_HERE}.plans", ranks=2),
}
"""All relations, the cheap ones first."""
