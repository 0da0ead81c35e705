"""The reference, one rank with one micro-batch per step, and how far rounding moves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import methodcaller
from typing import Any

from harness.bugs.api.numbers import finite, near
from harness.detectors.arithmetic import Projection
from harness.rank import compare
from harness.rank.compare import Array, Named, Spread
from harness.rank.probe.exchange import Step
from harness.training.probe.compare.faults import NEAR, in_directions, in_words, meaning
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run

BY_NAME = ("before", "eps", "grad", "largest", "outside", "raw", "state", "unheld", "update")
"""The entries of a step that are by parameter; in a state, more words follow the name after a
space."""


def rows_of(step: Step) -> list[str]:
    """The rows of all micro-batches of a step."""
    return [*chain(*step.rows)]


def unclipped(step: Step) -> Named:
    """The gradient of a step before clipping, if there is any."""
    gradient: Named = step.raw or step.grad
    return gradient


LOSS_LEAST = 1e-7
"""The least spread of a loss, as a fraction of it."""


def without_cleared(run: Run, expected: Sequence[Step] = (), same_rows: bool = False) -> Run:
    """A run without the micro-batches of a rehearsal: their gradients were cleared before the step,
    or no gradient came to them.

    With the steps of a reference (``expected``), only where its step has as many rows as are left.
    A loop that clears the gradients of each micro-batch is wrong, and has trained on all of them.
    """

    def trained(step: Step) -> Step:
        rows, unused = step.rows, step.unused
        cleared = step.cleared.get("rows", 0)
        if rows and cleared >= len(rows):
            return step  # DeepSpeed clears the 16-bit gradients that it has added up in fp32
        left = [micro for n, micro in enumerate(rows) if n >= cleared and n not in unused]
        remainders = {n: getattr(step, n)[count:] for n, count in step.cleared.items()}
        return step.copy(**remainders | {"rows": left or rows[cleared:]})

    gone: dict[int, list[Step]] = {}
    for number, step in enumerate(zip(*run.ranks, strict=False)):
        if not any(one.cleared or one.unused for one in step):
            continue
        at = run.layout.first + number
        remainder = list(map(trained, step))
        if not expected or (
            at < len(expected) and _count(remainder, same_rows) == _count([expected[at]], False)
        ):
            gone[number] = remainder
    if not gone:
        return run
    ranks = [
        [gone[n][rank] if n in gone else step for n, step in enumerate(steps)]
        for rank, steps in enumerate(run.ranks)
    ]
    seen_rows = [
        [rows_of(gone[n][rank]) if n in gone else rows for n, rows in enumerate(of_rank)]
        for rank, of_rank in enumerate(run.seen)
    ]
    return replace(run, ranks=ranks, seen=seen_rows)


def _count(step: Sequence[Step], same_rows: bool) -> int:
    """How many rows the ranks have in a step."""
    counts = [sum(map(len, one.rows)) for one in step]
    return max(counts) if same_rows else sum(counts)


def as_one(run: Run, same_rows: bool) -> Run:
    """A run as one rank would have recorded it: with all rows, and with the parameters of all."""
    run = without_cleared(run)
    if len(run.ranks) < 2:
        return run
    steps = [_together([rank[n] for rank in run.ranks], same_rows) for n in range(run.steps)]
    seen_rows = run.seen[:1]
    if not same_rows:
        seen_rows = [[[*chain(*rows)] for rows in zip(*run.seen, strict=False)]]
    return replace(run, ranks=[steps], seen=seen_rows)


def _together(ranks: Sequence[Step], same_rows: bool) -> Step:
    losses = [sum(one.losses) for one in ranks if one.losses]
    return ranks[0].copy(
        **{
            key: {n: v for one in reversed(ranks) for n, v in one.tensors(key).items()}
            for key in BY_NAME
            if any(one.tensors(key) for one in ranks)
        },
        several_ranks=True,
        left=0.0,
        losses=[sum(losses) / len(losses)] if losses else [],
        stale=max(one.stale for one in ranks),
        rows=ranks[0].rows if same_rows else [micro for one in ranks for micro in one.rows],
    )


@dataclass
class Reference:
    """The steps of the reference, and those of its perturbed runs."""

    steps: list[Step]
    rounded: list[list[Step]]
    run: Run | None = None
    """What else it did: evaluations, checkpoints, the schedule, and the rows of an epoch."""
    _spreads: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    _certain: dict[int, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def of(run: Run, perturbed: Sequence[Run]) -> Reference:
        return Reference(run.ranks[0], [each.ranks[0] for each in perturbed if each.ranks], run)

    def spread(self, step: int, quantity: str) -> Spread:
        """By parameter, how far rounding alone moves a quantity at a step, counted from 0. A single
        value in 16 bits counts as moved by half an ulp: by chance, no perturbed run may move it. An
        update counts as large as the largest one so far, which momentum may have cancelled."""
        key = step, quantity
        if key not in self._spreads:
            expected = self._by_parameter(self.steps, step, quantity)
            others = [
                self._by_parameter(run, step, quantity) for run in self.rounded if step < len(run)
            ]
            spreads = compare.spread(others, expected)
            if coarse := self.steps[step].coarse / 2:
                single = [name for name, value in expected.items() if value.size == 1]
                earlier = self.steps[: step + 1] if quantity == "update" else [self.steps[step]]
                every = [each.tensors(quantity) for each in earlier]
                for name in single:
                    size = max(compare.length(each[name]) for each in every if name in each)
                    spreads[name] = max(spreads[name], coarse * size)
            if quantity in ("update", "before"):  # at least an ulp of the largest weight
                eps, largest = self.steps[step].eps, self.steps[step].largest
                spreads = {n: max(s, eps[n] * largest[n]) for n, s in spreads.items()}
            self._spreads[key] = spreads
        return self._spreads[key]

    def spread_of_copy(self, step: int, copy: Mapping[str, Any]) -> Spread:
        """By parameter, how far rounding alone moves a copy of the weights: in each perturbed run
        it is the nearest one."""
        nearest = []
        for run in self.rounded:
            copies = run[step].copies if step < len(run) else ()
            alike = [each["weights"] for each in copies if each["holder"] == copy["holder"]]
            far = [sum(compare.distances(each, copy["weights"]).values()) for each in alike]
            nearest += alike[far.index(min(far)) :][:1] if far else []
        return compare.spread(nearest, copy["weights"])

    def _by_parameter(self, steps: Sequence[Step], step: int, quantity: str) -> Any:
        """A quantity of each parameter at a step; of updates, only the certain values."""
        tensors = steps[step].tensors(quantity)
        return compare.masked(tensors, self.certain(step)) if quantity == "update" else tensors

    def certain(self, step: int) -> dict[str, Any]:
        """Which values had gradients above rounding in all steps until this one."""
        if step not in self._certain:
            masks = compare.certain(self.steps[step].grad, self.spread(step, "grad"))
            for name, before in (self.certain(step - 1) if step else {}).items():
                masks[name] = masks[name] & before if name in masks else before
            self._certain[step] = masks
        return self._certain[step]

    def decided(self, step: int) -> float:
        """The share (0 to 1) of the values whose updates are compared."""
        masks = self.certain(step).values()
        return sum(float(mask.sum()) for mask in masks) / max(sum(mask.size for mask in masks), 1)

    @property
    def dead(self) -> list[str]:
        """The parameters that have a gradient of 0 in every step: they are equal in all layouts,
        whatever these do with gradients."""
        gradients = [step.grad for step in self.steps]
        return [n for n in gradients[0] if not any(one[n].any() for one in gradients if n in one)]

    def ends(self, step: int) -> bool:
        """Whether a step ends the data: it has fewer rows than the first."""
        first_size, last_size = (sum(map(len, self.steps[n].rows)) for n in (0, step))
        return last_size < first_size

    def loss(self, step: int) -> float:
        return float(sum(self.steps[step].losses))

    def loss_spread(self, step: int) -> float:
        expected = self.loss(step)
        deviations = [sum(run[step].losses) - expected for run in self.rounded if step < len(run)]
        # The summands of a loss may cancel each other, as with advantages of mean 0. They may be as
        # large as the change of the loss if all weights moved along its gradient.
        gradient = unclipped(self.steps[step])
        change = compare.norm(self.steps[0].before) * compare.norm(gradient)
        size = max(abs(expected), change) if finite(change) else abs(expected)
        return max([abs(f) for f in deviations if finite(f)] + [LOSS_LEAST * size])


@dataclass(frozen=True)
class Moment:
    """A step of a layout, and the same step of the reference."""

    reference: Reference
    number: int
    """The step in the reference, from 0."""
    ranks: list[Step]
    """The step of each rank."""
    layout: Layout
    is_first: bool
    """Whether it is the first step of the layout."""
    same_rows: bool

    @property
    def expected(self) -> Step:
        return self.reference.steps[self.number]

    @property
    def fewer_micro_batches(self) -> int:
        """After how many micro-batches the step came, if these are fewer than requested on all
        ranks; otherwise 0."""
        counts = {len(one.rows) for one in self.ranks}
        return min(counts) if len(counts) == 1 and min(counts) < self.layout.k else 0

    def meaning(self, ratio: float) -> str:
        """What a ratio says. Where fewer micro-batches are left for a step, as at the end of an
        epoch, it may be divided by the number that others have."""
        count, k = self.fewer_micro_batches, self.layout.k
        if count and near(ratio, count / k, share=NEAR):
            return f"{count} of {k} micro-batches, divided by {k}"
        return meaning(ratio, self.layout.rank_factor, k)

    def meaning_of(self, part: Projection) -> str:
        return self.meaning(part.ratio) if part.is_factor else ""

    def in_words(self, ratio: float | Projection) -> str:
        """A ratio, or a part of a tensor, with what it says."""
        if isinstance(ratio, Projection):
            return in_directions(ratio, self.meaning_of(ratio))
        return in_words(ratio, self.meaning(ratio))

    @property
    def clipping(self) -> bool:
        """Whether gradients were clipped where hooks see it, in both."""
        return bool(self.expected.raw) and all(one.raw for one in self.ranks)

    @property
    def gradient_quantity(self) -> str:
        """The quantity that has the gradients before clipping, if there is any."""
        return "raw" if self.clipping else "grad"

    def owned(self, rank: int, by_name: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entries of ``by_name`` whose parameter the rank has as a whole: a stage of a pipeline
        has some parameters, a rank of tensor parallelism has parts of others.

        A parameter that no rank has counts as every rank's: it is missing.
        """
        if not self.same_rows:
            return by_name
        names_of_ranks = [set(one.update) for one in self.ranks]
        others = set().union(*names_of_ranks) - names_of_ranks[rank] | set(self.parts_of(rank))
        return {name: one for name, one in by_name.items() if name.partition(" ")[0] not in others}

    def parts_of(self, rank: int) -> list[str]:
        """The parameters of which a rank has an unknown part."""
        mine, expected = self.ranks[rank].update, self.expected.update
        return [
            name for name in mine if name in expected and mine[name].shape != expected[name].shape
        ]

    def spread(self, quantity: str) -> Spread:
        return self.reference.spread(self.number, quantity)

    def astray(self, quantity: str, keep: Mapping[str, Any] | None = None) -> dict[int, list[str]]:
        """By rank, the parameters of which it has another quantity than the reference. ``keep`` has
        masks of the values that are compared."""
        keep, rounding = keep or {}, self.spread(quantity)
        expected = compare.masked(self.expected.tensors(quantity), keep)
        off = {
            rank: compare.astray(
                compare.masked(self.owned(rank, one.tensors(quantity)), keep),
                self.owned(rank, expected),
                rounding,
            )
            for rank, one in enumerate(self.ranks)
        }
        return {rank: list(names) for rank, names in off.items() if names}

    def pair(self, rank: int, quantity: str) -> tuple[Named, Named]:
        """A quantity of a rank, and what it should be."""
        return self.ranks[rank].tensors(quantity), self.owned(rank, self.expected.tensors(quantity))

    def mean(self, quantity: str, expected: Named) -> Named:
        """The mean of a quantity over the ranks, with the names of ``expected``."""
        return {
            name: sum(one.tensors(quantity).get(name, tensor * 0) for one in self.ranks)
            / self.layout.world
            for name, tensor in expected.items()
        }


OF_VALUES = ("before", "grad", "update")
"""The entries of a step with a number for each value of a parameter."""

Piece = tuple[int, Array]
"""The number of its first value in the parameter, and its values."""


def joined(ranks: Sequence[Step], expected: Step) -> list[Step]:
    """A step of all ranks. A rank with a piece of a parameter gets the whole of it, if all pieces
    are there; if several ranks have the same piece, each keeps its own."""
    names = {name for step in ranks for name in step.starts}
    steps = list(ranks)
    for kind in OF_VALUES if names else ():
        by_rank = [dict(step.tensors(kind)) for step in ranks]
        for name in names & set(expected.tensors(kind)):
            starts = [step.starts.get(name, 0) for step in ranks if name in step.tensors(kind)]
            owners = [tensors for tensors in by_rank if name in tensors]
            pieces = [(n, owner[name].ravel()) for n, owner in zip(starts, owners, strict=True)]
            for owner, piece in zip(owners, pieces, strict=True):
                whole = _whole([*pieces, piece], expected.tensors(kind)[name])
                owner[name] = owner[name] if whole is None else whole
        steps = [step.copy(**{kind: of}) for step, of in zip(steps, by_rank, strict=True)]
    return steps


def _whole(pieces: Sequence[Piece], like: Array) -> Array | None:
    """The joined pieces; later ones overwrite earlier ones. None if values are missing."""
    import numpy

    whole, is_filled = numpy.zeros(like.size, like.dtype), numpy.zeros(like.size, bool)
    for start, values in pieces:
        whole[start : start + values.size] = values
        is_filled[start : start + values.size] = True
    return whole.reshape(like.shape) if is_filled.all() else None


def as_in(expected: Step, steps: Sequence[Step]) -> list[Step]:
    """A rank's steps with the names that the reference has for the same parameters."""
    if not steps:
        return []
    rename = _renaming(set(steps[0].update), set(expected.update), steps[0].stage)
    if rename is None:
        return list(steps)

    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        return {rename(name): value for name, value in values.items()}

    return [
        step.copy(
            **{what: of(step.tensors(what)) for what in BY_NAME if step.tensors(what)},
            parts=[of(part) for part in step.parts],
        )
        for step in steps
    ]


def _renaming(names: set[str], targets: set[str], stage: int | None) -> Callable[[str], str] | None:
    """Adds the number of a rank's first stage to names, or adds a prefix, or removes one, so that
    all are ``targets``; None if nothing does."""
    renamings: list[Callable[[str], str]] = []
    if stage is not None:
        renamings.append(lambda n: f"{stage}.{n}" if f"{stage}.{n}" in targets else n)
    first_name = min(names, default="")
    for target in targets if not names & targets else ():
        less, more = first_name.removesuffix(target), target.removesuffix(first_name)
        if less.endswith("."):
            renamings.append(methodcaller("removeprefix", less))
        if more.endswith("."):
            renamings.append(more.__add__)
    for rename in renamings:
        renamed = {rename(name) for name in names}
        if renamed != names and renamed <= targets:
            return rename
    return None
