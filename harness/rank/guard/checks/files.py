"""A file gets weights: not those of the beginning, and not empty ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..posting.posts import Alarm
from ..states.training_states import COPY, SAVED, WEIGHT
from ..states.written_weights import FILE, FIRST, LIVE, VALUES
from .views import Memory, named


def files(state: Any, memory: Memory) -> Iterator[Alarm]:
    """The alarm of a file whose weights are not those of the training."""
    sums = {n: {kind: one.sum for kind, one in kinds.items()} for n, kinds in state.wholes.items()}
    file = os.path.basename(state.path) or "a file"
    old = _old(sums)
    if old:
        memory.not_seen["began"] = (
            f"whether it is meant that {file} got the weights with which this training began, and "
            f"not those of step {state.step}, perhaps as an average of them begins later: "
            f"{named(old)}"
        )
    elif not any(one[VALUES] for one in sums.values()) and _has_weights(state, memory):
        names = list(sums)
        text = f"{file} got no value of {named(names)}: all are 0 or not finite"
        yield Alarm("checkpoints", "empty", text, state.ranks, 1.0, names, state.step)


def _old(sums: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The weights that have moved, if the file has all of them as they were at the beginning, and
    they are most."""
    if not all(FIRST in one for one in sums.values()):
        return []  # it has the weights themselves, or some in another type
    moved = [name for name, one in sums.items() if one[FIRST] != one[LIVE]]
    is_old = all(sums[name][FILE] == sums[name][FIRST] for name in moved)
    return moved if is_old and 2 * len(moved) >= len(sums) else []


def _has_weights(state: Any, memory: Memory) -> bool:
    """Whether the training was saved in the same step, with weights that are not all 0."""
    saves = [one for one in memory.saved if (one.event, one.step) == (SAVED, state.step)]
    return any(
        kind in (WEIGHT, COPY) and whole.sum
        for one in saves
        for kinds in one.wholes.values()
        for kind, whole in kinds.items()
    )
