"""Compares buffers with those of a reference that was built without interference.

A context for building large models may change how tensors are made. DeepSpeed's ``zero.Init``
rounded the positions of LLaMA's rotary embedding: the cosines were wrong by up to 2.0, on every
rank and in no checkpoint, while all parameters were right. Check before the first step. A reference
with one layer is enough for a model that repeats it.

    reference = Model(config_with_one_layer)  # outside the context, under the same default dtype
    differences = buffer_differences(model, reference)
    assert not differences, differences[0]
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class BufferDifference:
    """A buffer that differs from the reference."""

    name: str
    dtype: torch.dtype
    expected_dtype: torch.dtype
    """That of the reference. A buffer with fewer bits may also have been computed with fewer."""
    elements: int
    mismatched: int
    """Elements that differ by more than the tolerance; 0 if only the dtypes differ."""
    greatest: float
    """The greatest absolute difference, in the buffer's own dtype; nan if NaNs differ."""
    place: tuple[int, ...]
    """The index of that element."""
    relative: float
    """The greatest difference relative to the buffer's value; inf if that is 0."""
    relative_place: tuple[int, ...]

    def __str__(self) -> str:
        if self.dtype != self.expected_dtype:
            dtypes = f"{self.dtype}, where the reference has {self.expected_dtype}; "
        else:
            dtypes = ""
        return (
            f"{self.name}: {dtypes}{self.mismatched} of {self.elements} elements differ, by up to "
            f"{self.greatest:g} at {self.place}, relatively by {self.relative:g} at "
            f"{self.relative_place}"
        )


def buffer_differences(
    module: nn.Module, reference: nn.Module, tolerance: float = 0.0
) -> list[BufferDifference]:
    """Compare every buffer of ``module``, on whatever device, with that of ``reference``.

    Buffers are paired by name. If the reference lacks a name, that of the first layer is used:
    ``layers.0.rotary.inv_freq`` for ``layers.7.rotary.inv_freq``. ``tolerance`` is an absolute
    difference; with 0, values must be equal, as they are for a reference on the same device. bf16
    cosines from a GPU need 2**-7 against a reference on a CPU. Raises ValueError if the reference
    has no such buffer, or one of another shape. Changes nothing, and copies each buffer to the
    host once. Returns an empty list if all agree.
    """
    expected = dict(reference.named_buffers())
    differences = []
    for name, buffer in module.named_buffers():
        pair = expected.get(name, expected.get(re.sub(r"(?<=\.)\d+(?=\.)", "0", name)))
        if pair is None:
            raise ValueError(f"the reference has no buffer {name}, nor one of the first layer")
        different = difference(name, buffer, pair, tolerance)
        if different is not None:
            differences.append(different)
    return differences


def difference(
    name: str, buffer: Tensor, reference: Tensor, tolerance: float = 0.0, share: float = 0.0
) -> BufferDifference | None:
    """How two tensors of one shape differ; None if they are equal.

    Values are equal if they differ by at most ``tolerance`` plus ``share`` of the reference. NaN
    equals NaN, and 0.0 equals -0.0. Two dtypes are compared in the one that both promote to. The
    figures are those that ``torch.testing.assert_close`` reports. The place in a scalar is
    ``(0,)``. Raises ValueError if the shapes differ.
    """
    if buffer.shape != reference.shape:
        shapes = f"{tuple(buffer.shape)}, and in the reference {tuple(reference.shape)}"
        raise ValueError(f"{name} has shape {shapes}: configure both alike")
    dtype = torch.promote_types(buffer.dtype, reference.dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.int64  # the difference of two uint8 may be negative
    ours, theirs = (torch.atleast_1d(t.detach().cpu().to(dtype)) for t in (buffer, reference))
    same_dtype = buffer.dtype == reference.dtype
    if same_dtype and torch.equal(theirs, ours):
        return None  # as most buffers are, and isclose is slower
    close = torch.isclose(ours, theirs, rtol=share, atol=tolerance, equal_nan=True)
    if same_dtype and close.all():
        return None
    apart = (theirs - ours).abs().masked_fill(close, 0)
    greatest, place = _greatest(apart, close)
    relative, relative_place = _greatest((apart / ours.abs()).masked_fill(close, 0), close)
    return BufferDifference(
        name=name,
        dtype=buffer.dtype,
        expected_dtype=reference.dtype,
        elements=buffer.numel(),
        mismatched=int((~close).sum()),
        greatest=greatest,
        place=place,
        relative=relative,
        relative_place=relative_place,
    )


def _greatest(values: Tensor, close: Tensor) -> tuple[float, tuple[int, ...]]:
    """The greatest value, or nan if there is one, and its index; no index if all are close."""
    if close.all():
        return 0.0, ()
    place = torch.unravel_index(values.argmax(), values.shape)
    return float(values[place]), tuple(map(int, place))
