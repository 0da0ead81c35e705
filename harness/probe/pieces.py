"""Parameters whose values are shared out among the optimizers of the ranks, put together again."""

from __future__ import annotations

from collections.abc import Sequence

from harness.probe.numbers import Array
from harness.probe.runs import Step

OF_VALUES = ("before", "grad", "update")
"""What a step has for each value of a parameter."""

Piece = tuple[int, Array]
"""The number of its first value in the parameter, and its values."""


def joined(ranks: Sequence[Step], right: Step) -> list[Step]:
    """A step of all ranks. Those that have a piece of a parameter get the whole of it, if all
    pieces are there; where several ranks have the same one, each keeps its own."""
    names = {name for one in ranks for name in one.get("starts", ())}
    found = [dict(one) for one in ranks]
    for what in OF_VALUES if names else ():
        for one in found:
            one[what] = dict(one.get(what, {}))
        for name in names & set(right.get(what, ())):
            owners = [one for one in found if name in one[what]]
            pieces = [(one["starts"].get(name, 0), one[what][name].ravel()) for one in owners]
            for one, own in zip(owners, pieces, strict=True):
                whole = _whole([*pieces, own], right[what][name])
                one[what][name] = one[what][name] if whole is None else whole
    return found


def _whole(pieces: Sequence[Piece], like: Array) -> Array | None:
    """The pieces in one, of which later ones count; None if values are missing."""
    import numpy

    whole, there = numpy.zeros(like.size, like.dtype), numpy.zeros(like.size, bool)
    for start, values in pieces:
        whole[start : start + values.size] = values
        there[start : start + values.size] = True
    return whole.reshape(like.shape) if there.all() else None
