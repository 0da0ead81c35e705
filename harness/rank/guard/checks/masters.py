"""The weights of the model are those that the optimizer steps, rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..posting.posts import Alarm
from .views import Memory, View, named


def masters(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """The weights of the model are those that the optimizer steps, rounded."""
    for view in views:
        counts = view.post.tensors.get("unrounded")
        if counts is None:
            continue
        memory.compared["masters"] = sum(bool(view.described[n].master) for n in view.numbers)
        apart = {
            view.described[number].name: int(count)
            for number, count in zip(view.numbers, counts)
            if int(count)
        }
        if apart:
            total, names = sum(apart.values()), list(apart)
            kind = view.described[view.numbers[0]].master
            text = (
                f"{total} value{'s' if total > 1 else ''} of {named(names)} are not those of the "
                f"copy in {kind} that the optimizer steps, rounded"
            )
            yield Alarm("updates", "copy", text, [view.rank], float(total), names)
