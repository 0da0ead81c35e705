"""In a step no two ranks of a data-parallel training read the same rows; epochs are different."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ..posting.posts import Alarm, EpochSample, Pass, sampled_rows
from .views import Memory, View

SURE = math.log(1e3)
"""The surprisal, in nats, that shows a sampler which gives no row twice: one that draws from all
rows has a chance of 0.1 % (birthday problem). A sampler of a test draws 24 of 48 rows, as many as a
split would have."""
LEAST_COMMON = 2
"""Rows that two ranks have in common in an epoch: a sampler gives one row twice to fill up the
ranks, as torch's does with 45 rows on two ranks."""
ENOUGH = math.log(1e7)
"""The limit of the CUSUM: ranks that draw from few rows by themselves often have some in common. In
the right loop ``rows.few_rows_for_each_rank_alone`` two ranks have the same five of ten rows in one
order once in 30,240 checks, which adds 4.5 of these 16.1."""
MOST_ROWS = 4096
"""Different rows that are remembered, as a measure of how many there are: two of so many have 17
million orders."""
FEW = 4
"""Different rows that two ranks have alike in the first check, to be told at once. The right loops
``rows.replacement`` and ``rows.own_draws`` draw two of 12 and of 16 rows, which are the same on two
ranks once in 144 and in 256 steps."""
LEAST_AGAIN = 4
"""So few rows may come again after a load: those of a step whose state was not saved, four in a
test. Of 100,000 rows about 1,000 are followed, of which a step of 64 has one."""

ALIKE = 4
"""So many checks in a row with the same gradients make a fault: equal rows of a few steps may be on
purpose. llm.c's ``train_gpt2.py``, with the rows of rank 0 on each rank, is told in step 4."""
MOST_MARKS = 64
"""Checks that are remembered of ranks that have the same: a limit of memory."""

Mark = tuple[int, tuple[int, ...]]
"""A number for the gradients of a step, and the bit sums of its targets, or of its inputs."""

COMMON_ROWS = "common rows"
"""Under which ``compared`` and ``not_seen`` have what the gradients say of rows."""


def samples(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step no two ranks of a data-parallel training read the same rows, and epochs are
    different."""
    yield from passes(views, memory)
    # After a load of the whole training, an epoch has another order than before the save.
    if any(order in memory.data.orders for order in views[0].post.data.orders):
        text = (
            "the epoch after the load begins with the same rows in the same order as the one "
            "before the save: the loader has forgotten how many epochs it has read"
        )
        yield Alarm("samples", "replayed", text, [view.rank for view in views])
    groups = splitting_groups(views)
    by_loader: dict[int, dict[int, list[int]]] = {}
    for view in views:
        for loader, rows in view.post.data.rows:
            by_loader.setdefault(loader, {}).setdefault(view.rank, []).extend(rows)
    if by_loader or any(view.post.data.epochs or view.post.data.passes for view in views):
        memory.compared["samples"] = len(by_loader)
    is_told = False
    for (loader, readers), group in product(by_loader.items(), sorted(groups)):
        # Random rows, or padding, are equal among themselves.
        lists = {
            rank: tuple(rows)
            for rank in group
            for rows in [readers.get(rank, [])]
            if rows and (len(rows) < 4 or len(set(rows)) >= 0.5 * len(rows))
        }
        if len(lists) < 2:
            continue
        readers_of = Counter(lists.values())
        twins = {rank: rows for rank, rows in lists.items() if readers_of[rows] > 1}
        if twins and _answer_apart(twins, views):
            memory.data.varied.add(loader)
            memory.not_seen["shared"] = (
                "whether it is meant that ranks read the same rows: they compute other gradients "
                "of them, as where each rank draws answers of its own"
            )
            continue
        key = loader, group
        surprise = _surprise(lists, twins, memory)
        memory.data.surprises[key] = max(0.0, memory.data.surprises.get(key, 0.0)) + surprise
        is_first = views[0].post.check == 1 and any(len({*rows}) >= FEW for rows in twins.values())
        if not twins or not (memory.data.surprises[key] >= ENOUGH or is_first):
            continue
        repeated = len(set().union(*twins.values()))
        total = len(set().union(*lists.values()))
        text = f"{repeated} of the {total} rows of this step were read by more than one rank"
        is_told = True
        yield Alarm("samples", "shared", text, sorted(twins), float(repeated))
    if not is_told:
        yield from _of_epochs(views, groups, memory)


def splitting_groups(views: Sequence[View]) -> set[tuple[int, ...]]:
    """The groups of ranks that average gradients, of other rows each."""
    tables = {view.described.columns.digest: view.described.columns for view in views}
    return {
        columns.groups[group]
        for columns in tables.values()
        for group, is_shared in zip(columns.group, columns.fields["same_rows"])
        if len(columns.groups[group]) > 1 and not is_shared
    }


def _of_epochs(
    views: Sequence[View], groups: Collection[tuple[int, ...]], memory: Memory
) -> Iterator[Alarm]:
    """In an epoch of a dataset that the ranks split no two ranks read the same row."""
    samples: dict[tuple[int, int], dict[int, EpochSample]] = {}
    for view in views:
        for sample in view.post.data.epochs:
            samples.setdefault((sample.loader, sample.epoch), {})[view.rank] = sample
            _note_values(sample, memory)
    for (loader, epoch), group in product(sorted(samples), sorted(groups)):
        members = [(rank, samples[loader, epoch].get(rank)) for rank in group]
        readers = {rank: sample for rank, sample in members if sample is not None}
        readers_of = Counter(row for sample in readers.values() for row in sample.rows)
        common = {row for row, count in readers_of.items() if count > 1}
        is_split = sum(sample.surprise for sample in readers.values()) >= SURE
        if len(common) < LEAST_COMMON or not is_split or loader in memory.data.varied:
            continue
        ranks = [rank for rank, sample in readers.items() if not common.isdisjoint(sample.rows)]
        text = (
            f"{len(common)} of {len(readers_of)} rows of epoch {epoch} were read by more than one "
            "rank, although the ranks split the rows (do they shuffle alike?)"
        )
        yield Alarm("samples", "shared", text, ranks, float(len(common)))


def _answer_apart(twins: Mapping[int, tuple[int, ...]], views: Sequence[View]) -> bool:
    """Whether ranks that read the same rows compute other gradients of them, or none, by a loss
    without targets, or with other ones: with GRPO several ranks answer one prompt, and with context
    parallelism each has a part of the sequence."""
    tensors = {view.rank: view.post.tensors for view in views if view.rank in twins}
    sums = [one["targets_sum"].tolist() for one in tensors.values() if "targets_sum" in one]
    if len({*map(tuple, sums)}) < len(sums) or any("computed" not in t for t in tensors.values()):
        return False
    gradients = {rank: one["computed"] for rank, one in tensors.items() if one["computed"].any()}
    marks = {(twins[rank], one.numpy().tobytes()) for rank, one in gradients.items()}
    return len(marks) == len(gradients)


def _note_values(sample: EpochSample, memory: Memory) -> None:
    """Remember the values of a step's rows: if they vary, their numbers do not say which rows they
    are."""
    values = memory.data.row_values.setdefault(sample.loader, {})
    for row, value in sample.step:
        if values.get(row, value) != value:
            memory.data.varied.add(sample.loader)
        if len(values) < MOST_ROWS:
            values.setdefault(row, value)


def passes(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """The rest of an epoch, after a load, has other rows than its beginning: once all ranks have
    read it."""
    for view in views:
        for one in view.post.data.passes:
            key = one.loader, one.number
            by_rank = memory.data.passes.setdefault(key, {})
            by_rank[view.rank] = one
            if len(by_rank) == len(views) and len({one.size for one in by_rank.values()}) == 1:
                yield from _resumed(memory.data.passes.pop(key), memory)


def of_ranks(passes: Iterable[Pass]) -> Pass:
    """The parts of an epoch that several ranks have read. Its ``batch`` has the rows of all."""
    parts = list(passes)
    sampled = [row for one in parts for row in one.sampled]
    counts = (sum(one.rows for one in parts), sum(one.batch for one in parts))
    return replace(parts[0], rows=counts[0], batch=counts[1], sampled=sampled)


def _resumed(by_rank: Mapping[int, Pass], memory: Memory) -> Iterator[Alarm]:
    """The rest of an epoch has none of the rows that it had before the save. A loop that begins the
    epoch again after a load reads all of its rows."""
    remainder = of_ranks(by_rank.values())
    begun = [one for one in memory.data.begun if one.size == remainder.size]
    memory.data.begun = [one for one in memory.data.begun if one.size != remainder.size]
    spare = max([remainder.batch, *(one.batch for one in begun)])
    is_rest = len(begun) == 1 and abs(begun[0].rows + remainder.rows - remainder.size) <= spare
    if not is_rest or len(set(remainder.sampled)) < len(remainder.sampled):
        return
    total = len(sampled_rows(remainder.size))
    common = len({*begun[0].sampled} & {*remainder.sampled})
    if common > max(LEAST_AGAIN, spare * total / remainder.size):
        text = (
            f"{common / total:.0%} of the rows of an epoch were read before the save, and again in "
            "the rest of the epoch after the load, and as many never: the loader goes on in "
            "another order"
        )
        yield Alarm("samples", "resume", text, sorted(by_rank), float(common))


def _surprise(
    lists: Mapping[int, tuple[int, ...]], twins: Mapping[int, tuple[int, ...]], memory: Memory
) -> float:
    """The logarithm of an e-value against ranks that draw from few rows, each as it likes: several
    ranks have the same rows in one order. The p-value becomes one by the calibrator
    ``p ** -0.5 / 2`` (Vovk and Wang, 2021). The sum over checks, never below 0, is a CUSUM."""
    if len(memory.data.rows) < MOST_ROWS:
        memory.data.rows.update(*lists.values())
    sizes = [len({*rows}) for rows in twins.values()]
    pairs = math.log(len(lists) * (len(lists) - 1) / 2)
    count = len(memory.data.rows)
    orders = math.lgamma(count + 1) - math.lgamma(max(0, count - min(sizes, default=0)) + 1)
    chance = pairs - orders if sizes else 0.0
    return -min(0.0, chance) / 2 - math.log(2)


# -- gradients that show whether ranks have the same rows, without a loader --


def common_rows(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """In a step not all ranks of a data-parallel training compute the same gradients, bit by bit.

    Rows that a loader gives are compared by ``samples``.
    """
    memory.compared.pop(COMMON_ROWS, None)
    memory.not_seen.pop(COMMON_ROWS, None)
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
            memory.compared[COMMON_ROWS] = len(members)
        if len(members) > 1 or None in members:
            steps.clear()
        elif len(steps) < MOST_MARKS:
            steps |= members
        gradients, targets = {mark[0] for mark in steps}, {mark[1] for mark in steps if mark[1]}
        if len(gradients) < ALIKE or len(targets) == 1:
            continue  # one batch in all steps
        if reason := _why_right(group, views, bool(reduced), not targets):
            memory.not_seen[COMMON_ROWS] = f"all these ranks compute the same gradients: {reason}"
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
