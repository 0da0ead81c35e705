"""Ranks step a parameter with the same settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....detectors.arithmetic import NOISE
from ..posting.posts import Alarm
from .views import Memory, View

SAME = ("lr", "weight_decay", "momentum", "betas", "eps", "d")
"""Settings of a group that say how far a step goes; ``d`` is the step size that Prodigy and
D-Adaptation choose. Others may be of one rank, such as a seed."""


def groups(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Ranks step a parameter with the same settings: where each has a shard, no copies would show
    that they do not."""
    firsts: dict[Any, tuple[Any, int]] = {}
    forms = set()
    for view in views:
        if view.post.run.form in forms:
            continue  # the same settings as those of a rank before
        forms.update([view.post.run.form] if view.post.run.form else [])
        for update in view.post.parameters.updates:
            described = view.described[update.parameter]
            rate = {"lr": update.rate} if update.rate >= 0 else {}
            values = {name: update.group[name] for name in SAME if name in update.group}
            for name, value in {**values, **rate}.items() if described.ranks else ():
                place = described.name, described.part, tuple(described.ranks), name
                first, rank = firsts.setdefault(place, (value, view.rank))
                if not _are_equal(value, first):
                    text = (
                        f"ranks step {described.name} with other settings: {name} is {first} on "
                        f"rank {rank}, and {value} on rank {view.rank}"
                    )
                    yield Alarm("updates", "settings", text, [view.rank], 0.0, [described.name])
                    return


def _are_equal(value: Any, second: Any) -> bool:
    """Whether two numbers, or lists of numbers, are equal, as far as rounding allows."""
    values, others = (one if isinstance(one, (list, tuple)) else [one] for one in (value, second))
    return len(values) == len(others) and all(
        one == other or abs(one - other) <= NOISE * abs(other) for one, other in zip(values, others)
    )
