"""Rows of a batch: the names by which they are recognised, their order, and the ignored label.

It imports neither numpy nor torch, as ``arithmetic``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

IGNORED = -100
"""The label of a position that torch's cross-entropy ignores."""


def checksum(content: bytes) -> str:
    """A short name for the content of a row, or of anything else."""
    return blake2b(content, digest_size=8).hexdigest()


def have_same_order(rows: Sequence[Any], others: Sequence[Any], least: float = 2) -> bool:
    """Whether the same rows come in the same order, and at least so many of them are different:
    otherwise their order means nothing."""
    return len(set(rows)) >= least and rows == others


def leaves(
    value: Any, is_open: Callable[[Any], bool] = lambda value: False
) -> Iterator[tuple[str, Any]]:
    """What nested mappings, lists and tuples contain, with its name or number in the innermost one.

    The attributes of an object are looked at if ``is_open`` holds for it.
    """
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    elif is_open(value):
        parts = list(vars(value).items())
    else:
        yield "", value
        return
    for name, part in parts:
        for inner, leaf in leaves(part, is_open):
            yield inner or str(name), leaf
