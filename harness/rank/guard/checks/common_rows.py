"""The gradients that ranks compute show whether all have the same rows, without a loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..posting.posts import Alarm
from .samples import splitting_groups
from .views import Memory, View

ALIKE = 4
"""So many checks in a row make a fault: equal rows of a few steps may be on purpose. llm.c's
``train_gpt2.py``, with the rows of rank 0 on each rank, is told in step 4."""
MOST_MARKS = 64
"""Checks that are remembered of ranks that have the same: a limit of memory."""

Mark = tuple[int, tuple[int, ...]]
"""A number for the gradients of a step, and the bit sums of its targets, or of its inputs."""

NAME = "common rows"
"""Under which ``compared`` and ``not_seen`` have what is said here."""


def common_rows(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step not all ranks of a data-parallel training compute the same gradients, bit by bit.

    Rows that a loader gives are compared by ``samples``.
    """
    memory.compared.pop(NAME, None)
    memory.not_seen.pop(NAME, None)
    if any(view.post.data.rows or view.post.data.epochs for view in views):
        memory.data.alike.clear()
        return
    marks: dict[int, Mark] = {}
    for view in views:
        computed, sums = (view.post.tensors.get(name) for name in ("computed", "targets_sum"))
        if computed is not None and computed.any():
            of_targets = () if sums is None else tuple(sums.tolist())
            marks[view.rank] = hash(computed.numpy().tobytes()), of_targets
    reduced = _reduced_by_loop(views)
    for group in sorted(reduced or splitting_groups(views)):
        members = {marks.get(rank) for rank in group}
        steps = memory.data.alike.setdefault(group, set())
        if None not in members:
            memory.compared[NAME] = len(members)
        if len(members) > 1 or None in members:
            steps.clear()
        elif len(steps) < MOST_MARKS:
            steps |= members
        gradients, targets = {mark[0] for mark in steps}, {mark[1] for mark in steps if mark[1]}
        if len(gradients) < ALIKE or len(targets) == 1:
            continue  # one batch in all steps
        if reason := _why_right(group, views, bool(reduced), not targets):
            memory.not_seen[NAME] = f"all these ranks compute the same gradients: {reason}"
            continue
        text = (
            f"in {ALIKE} checks in a row all these ranks computed the same gradients, bit by bit: "
            "they train on the same rows (the same seed, or no sampler?)"
        )
        yield Alarm("samples", "shared", text, list(group), float(ALIKE))


def _why_right(
    group: Sequence[int], views: Sequence[View], is_by_loop: bool, is_unseen: bool
) -> str:
    """Why ranks may compute the same gradients in a right training; empty if they may not."""
    if is_unseen:
        return "perhaps one batch trains in all steps, or what all ranks have reduced"
    if any(view.post.losses.gathers for view in views if view.rank in group):
        return "perhaps as the loop gathers tensors of all ranks before the loss"
    total = sum(views[0].described.columns.numels)
    if is_by_loop and any(2 * view.post.loop.reduced < total for view in views):
        return "perhaps each trains the whole model alone, as no reduction is seen after a backward"
    return ""


def _reduced_by_loop(views: Sequence[View]) -> set[tuple[int, ...]]:
    """All ranks as a group, if no wrapper says which ranks share the model, and all began with the
    same weights."""
    tables = [view.described.columns for view in views]
    firsts = [view.first_bits for view in views]
    is_one_model = len({one.digest for one in tables}) == 1 and len(views) > 1
    if not is_one_model or any(tables[0].groups) or any(tables[0].fields["same_rows"]):
        return set()
    is_alike = all(
        one is not None and firsts[0] is not None and one.equal(firsts[0]) for one in firsts
    )
    return {tuple(view.rank for view in views)} if is_alike else set()
