"""Checks the relations of ``models`` on the user's own model, with rows of its own batch.

The model has the weights after the probe's last step. Nothing is trained after this.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.rank.models.answer import NoAnswer
from harness.rank.models.asking import ask_alone, guarded
from harness.rank.models.subject import Subject
from harness.rank.probe.buffers import buffers
from harness.rank.training.names import WRAPPERS

IDS, MASK, BUFFERS = "input_ids", "attention_mask", "buffers"

LEAST = 8
"""The least number of tokens in a row."""


def answers(names: Sequence[str], module: Any, batch: Mapping[str, Any]) -> dict[str, list[str]]:
    """By relation, the status and the reason."""
    module = _unwrapped(module)
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        subject = Subject("the script's model", lambda: (module, _rows(batch)), Path(folder))
        by_name = {
            name: guarded(lambda: buffers(module)) if name == BUFFERS else ask_alone(name, subject)
            for name in names
        }
    return {name: [one.status.value, one.reason] for name, one in by_name.items()}


def _unwrapped(module: Any) -> Any:
    while inner := next((name for name in WRAPPERS if hasattr(module, name)), ""):
        module = getattr(module, inner)
    return module


def _rows(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of one length without padding. A single row becomes two. Raises NoAnswer if they are
    too few or too short."""
    import torch

    if IDS not in batch:
        raise NoAnswer(f"the model is not given {IDS}")
    ids, mask = batch[IDS], batch.get(MASK)
    rows = list(ids)
    if mask is not None and mask.shape == ids.shape:
        rows = [row[kept.bool()] for row, kept in zip(ids, mask, strict=True)]
    if len(rows) == 1:
        half = len(rows[0]) // 2
        rows = [rows[0][:half], rows[0][half : 2 * half]]
    rows = [row for row in rows if len(row) >= LEAST]
    if len(rows) < 2:
        raise NoAnswer(f"the batch has fewer than two rows of {LEAST} tokens")
    width = min(map(len, rows))
    tokens = torch.stack([row[:width] for row in rows])
    return {IDS: tokens, "labels": tokens.clone()}
