"""A file gets weights: not those of the beginning, and not empty ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..posting.posts import Alarm
from ..states.training_states import COPY, SAVED, WEIGHT
from ..states.written_weights import FILE, FIRST, LIVE, VALUES
from .views import Memory, named


def files(state: Any, memory: Memory) -> Iterator[Alarm]:
    """The alarm of a file whose weights are not those of the training."""
    sums = {n: {kind: one.sum for kind, one in kinds.items()} for n, kinds in state.wholes.items()}
    file = os.path.basename(state.path) or "a file"
    # Otherwise it has the weights themselves, or some in another type.
    moved = [n for n, one in sums.items() if FIRST not in one or one[FIRST] != one[LIVE]]
    is_old = all(FIRST in one for one in sums.values()) and 2 * len(moved) >= len(sums)
    if moved and is_old and all(sums[name][FILE] == sums[name][FIRST] for name in moved):
        memory.not_seen["began"] = (
            f"whether it is meant that {file} got the weights with which this training began, and "
            f"not those of step {state.step}, perhaps as an average of them begins later: "
            f"{named(moved)}"
        )
    elif not any(one[VALUES] for one in sums.values()) and _has_weights(state, memory):
        names = list(sums)
        text = f"{file} got no value of {named(names)}: all are 0 or not finite"
        yield Alarm("checkpoints", "empty", text, state.ranks, 1.0, names, state.step)


def _has_weights(state: Any, memory: Memory) -> bool:
    """Whether the training was saved in the same step, with weights that are not all 0."""
    saves = [one for one in memory.saved if (one.event, one.step) == (SAVED, state.step)]
    return any(
        kind in (WEIGHT, COPY) and whole.sum
        for one in saves
        for kinds in one.wholes.values()
        for kind, whole in kinds.items()
    )
