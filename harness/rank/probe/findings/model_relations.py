"""Checks the relations of ``models`` on the user's own model, with rows of its own batch.

The model has the weights after the probe's last step. Nothing is trained after this.

One relation is asked only here: buffers that no checkpoint contains are compared with those of a
new model of the same config. A script may construct a model in a context that changes new tensors,
such as DeepSpeed's zero.Init, or cast the whole model. A checkpoint then restores the parameters,
but not these buffers.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.models.asking import ask_alone, guarded
from harness.rank.models.relations.checkpoints import FREQUENCIES
from harness.rank.models.subject import Subject
from harness.rank.training.layouts import WRAPPERS
from harness.system.text import count

IDS, MASK, BUFFERS = "input_ids", "attention_mask", "buffers"

LEAST = 8
"""The least number of tokens in a row."""

LAST_PLACE = 2.0**-21
"""How far two fp32 values may be apart, as a part of their size plus 1."""


def answers(names: Sequence[str], module: Any, batch: Mapping[str, Any]) -> dict[str, list[str]]:
    """By relation, the status and the reason."""
    while inner := next((name for name in WRAPPERS if hasattr(module, name)), ""):
        module = getattr(module, inner)
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        subject = Subject("the script's model", lambda: (module, _rows(batch)), Path(folder))
        by_name = {
            name: guarded(lambda: buffers(module)) if name == BUFFERS else ask_alone(name, subject)
            for name in names
        }
    return {name: [one.status.value, one.reason] for name, one in by_name.items()}


def _rows(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of one length without padding. A single row becomes two. Raises NoAnswer if they are
    too few or too short."""
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


def buffers(module: Any) -> str:
    """Compare the buffers; returns their number in words. Raises Wrong if one differs, and NoAnswer
    if there are none or if the model has no config."""
    module = _configured(module)
    ours = dict(_unsaved(module))
    # A GPU rounds differently, and the script may have used either device.
    devices = dict.fromkeys(["cpu", *(str(buffer.device) for buffer in ours.values())])
    new = [dict(_unsaved(_new(module, device))) for device in devices]
    shared = [name for name in ours if name in new[0]]
    if not shared:
        raise NoAnswer("a checkpoint has all buffers of the model")
    faults = {n: why for n in shared if (why := _off(ours[n], [each[n] for each in new]))}
    if faults:
        name, why = next(iter(faults.items()))
        tail = f"; {len(faults)} of {count(len(shared), 'buffer')} are wrong" if shared[1:] else ""
        raise Wrong(f"{name} is not that of a new model of the same config: {why}{tail}")
    frequencies = [name for name in shared if any(part in name for part in FREQUENCIES)]
    dtypes = {_dtype(ours[name]) for name in frequencies} - {"float32", "float64"}
    text = count(len(shared), "buffer")
    if dtypes:
        text += f"; frequencies are in {' and '.join(dtypes)}, and positions multiply the rounding"
    return text


def _configured(module: Any) -> Any:
    """The first part of the model that takes a config: adapters may wrap it."""
    for part in module.modules():
        made_from = inspect.signature(type(part)).parameters
        if hasattr(getattr(part, "config", None), "to_dict") and "config" in made_from:
            return part
    raise NoAnswer("the model is not made from a config, as those of transformers are")


def _new(module: Any, device: str) -> Any:
    """Construct a model of the same class and config, in fp32 on a device."""
    config = copy.deepcopy(module.config)
    config._attn_implementation = "eager"  # others refuse fp32, or a CPU
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device(device):
            return type(module)(config)
    finally:
        torch.set_default_dtype(before)


def _unsaved(module: Any) -> Iterator[tuple[str, Any]]:
    """The buffers of floats that no checkpoint contains."""
    for prefix, part in module.named_modules():
        for name in part._non_persistent_buffers_set:
            buffer = part._buffers.get(name)
            if buffer is not None and buffer.is_floating_point():
                yield f"{prefix}.{name}".lstrip("."), buffer.detach()


def _off(buffer: Any, new: Sequence[Any]) -> str:
    """How a buffer differs from its counterpart in all new models, rounded to its dtype. Empty if
    it equals one of them or has another shape: some buffers grow with the rows."""
    from harness.detectors.buffers import difference

    why = ""
    for reference in new:
        if buffer.shape != reference.shape:
            return ""
        rounded = reference.to(buffer.dtype)
        apart = difference("", buffer.double(), rounded.double(), LAST_PLACE, LAST_PLACE)
        if apart is None:
            return ""
        why = why or (
            f"{apart.mismatched} of {apart.elements} values are off by up to {apart.greatest:.2g}, "
            f"in {_dtype(buffer)}"
        )
    return why


def _dtype(buffer: Any) -> str:
    return str(buffer.dtype).removeprefix("torch.")
