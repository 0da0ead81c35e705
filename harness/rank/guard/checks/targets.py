"""Targets and losses of a step show whether all ranks have the same rows, without a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..posts import Post
from .samples import splitting_groups
from .views import Alarm, Memory, View

ALIKE = 4
"""So many checks in a row make a fault. A loop that tries something out may have fewer batches."""

Marks = tuple[tuple[int, ...], tuple[float, ...]]
"""The bit sums of the targets of a step, and its losses."""


def targets(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step not all ranks of a data-parallel training have the same targets and losses."""
    memory.compared.pop("targets", None)
    if any(view.post.rows or view.post.epochs or view.post.gathers for view in views):
        memory.alike.clear()
        return
    marks = {view.rank: mark for view in views if (mark := _marks(view.post)) is not None}
    for group in sorted(splitting_groups(views)):
        members = {marks.get(rank) for rank in group}
        steps = memory.alike.setdefault(group, set())
        if None not in members:
            memory.compared["targets"] = len(members)
        if len(members) > 1 or None in members:
            steps.clear()
        elif len(steps) < ALIKE:
            steps |= members
        if min(len({part[n] for part in steps}) for n in range(2)) >= ALIKE:
            text = (
                f"in {ALIKE} checks in a row all these ranks had the same targets and the same "
                "losses: they train on the same rows (the same seed, or no sampler?)"
            )
            yield Alarm("samples", "shared", text, list(group), float(ALIKE))


def _marks(post: Post) -> Marks | None:
    sums, roots = post.tensors.get("targets_sum"), post.tensors.get("roots")
    if sums is None or roots is None:
        return None
    return tuple(sums.tolist()), tuple(roots.tolist())
