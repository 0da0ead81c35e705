"""Tensors on their way between ranks and the harness, whose releases of numpy may differ.

A pickle of an array names modules of numpy, which moved from one release to the next. So arrays
travel as their type, shape and bytes.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

PACKED = "array"


class Packed(NamedTuple):
    """An array; a plain tuple in the pickle."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    content: bytes


def dumped(recorded: Any) -> bytes:
    """Dictionaries and lists of plain values, tensors and arrays, as bytes."""
    return pickle.dumps(_packed(recorded), pickle.HIGHEST_PROTOCOL)


def loaded(content: bytes) -> Any:
    """The same with arrays; only what this project itself wrote."""
    return _unpacked(pickle.loads(content))


def _packed(recorded: Any) -> Any:
    if isinstance(recorded, dict):
        return {key: _packed(value) for key, value in recorded.items()}
    if isinstance(recorded, list):
        return [_packed(each) for each in recorded]
    if not hasattr(recorded, "dtype"):
        return recorded
    array = recorded if hasattr(recorded, "tobytes") else recorded.numpy()
    return tuple(Packed(PACKED, array.dtype.str, array.shape, array.tobytes()))


def _unpacked(recorded: Any) -> Any:
    import numpy

    if isinstance(recorded, dict):
        return {key: _unpacked(value) for key, value in recorded.items()}
    if isinstance(recorded, list):
        return [_unpacked(each) for each in recorded]
    if isinstance(recorded, tuple) and recorded[:1] == (PACKED,):
        array = Packed(*recorded)
        return numpy.frombuffer(array.content, array.dtype).reshape(array.shape).copy()
    return recorded
