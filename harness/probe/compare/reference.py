"""The reference, one rank with one micro-batch a step, with the spread that rounding has in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from harness.bugs.api.numbers import finite
from harness.probe.layouts import Layout
from harness.probe.runner import Run, Step
from harness.rank import vectors
from harness.rank.vectors import Array, Spread

BY_NAME = ("before", "eps", "grad", "largest", "outside", "raw", "state", "update")
"""What a step has for each parameter; the names of a state go on after a space."""

LOSS_LEAST = 1e-7
"""The least spread of a loss, as a part of it."""


def without_cleared(run: Run, right: Sequence[Step] = (), same_rows: bool = False) -> Run:
    """A run without the micro-batches whose gradients were cleared before the step, and without
    those to which no gradient came: a rehearsal.

    Beside a reference (``right``), only where its step has as many rows as are left. A loop that
    clears the gradients of each micro-batch is wrong, and has trained on all of them.
    """
    steps = list(zip(*run.ranks, strict=False))
    gone = set()
    for number, step in enumerate(steps):
        if not any(one["cleared"] or one["unused"] for one in step):
            continue
        at = run.layout.first + number
        kept = [_without_cleared(one) for one in step]
        if not right or (at < len(right) and _count(kept, same_rows) == _count([right[at]], False)):
            gone.add(number)
    if not gone:
        return run
    ranks = [
        [_without_cleared(one) if n in gone else one for n, one in enumerate(steps)]
        for steps in run.ranks
    ]
    seen = [
        [[*chain(*rank[n]["rows"])] if n in gone else rows for n, rows in enumerate(of_rank)]
        for of_rank, rank in zip(run.seen, ranks, strict=True)
    ]
    return replace(run, ranks=ranks, seen=seen)


def _without_cleared(step: Step) -> Step:
    rows, unused = step["rows"], step["unused"]
    first = step["cleared"].get("rows", 0)
    kept = [micro for n, micro in enumerate(rows) if n >= first and n not in unused]
    rest = {what: step[what][count:] for what, count in step["cleared"].items()}
    return step | rest | {"rows": kept or rows[first:]}


def _count(step: Sequence[Step], same_rows: bool) -> int:
    """How many rows the ranks have in a step."""
    counts = [sum(map(len, one["rows"])) for one in step]
    return max(counts) if same_rows else sum(counts)


def as_one(run: Run, same_rows: bool) -> Run:
    """A run as one rank would have recorded it: with all rows, and with the parameters of all."""
    run = without_cleared(run)
    if len(run.ranks) < 2:
        return run
    steps = [_together([rank[n] for rank in run.ranks], same_rows) for n in range(run.steps)]
    seen = run.seen[:1]
    if not same_rows:
        seen = [[[*chain(*rows)] for rows in zip(*run.seen, strict=False)]]
    return replace(run, ranks=[steps], seen=seen, reported=run.reported[:1])


def _together(ranks: Sequence[Step], same_rows: bool) -> Step:
    found = dict(ranks[0])
    for what in BY_NAME:
        if any(one.get(what) for one in ranks):
            every = [one.get(what) or {} for one in reversed(ranks)]
            found[what] = {n: v for one in every for n, v in one.items()}
    losses = [sum(one["losses"]) for one in ranks if one["losses"]]
    found["losses"] = [sum(losses) / len(losses)] if losses else []
    found["stale"] = max(one["stale"] for one in ranks)
    if not same_rows:
        found["rows"] = [micro for one in ranks for micro in one["rows"]]
    return found


@dataclass
class Reference:
    """The steps of the reference, and those of its perturbed runs."""

    steps: list[Step]
    rounded: list[list[Step]]
    _spreads: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    _certain: dict[int, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def of(run: Run, perturbed: Sequence[Run]) -> Reference:
        return Reference(run.ranks[0], [each.ranks[0] for each in perturbed if each.ranks])

    def spread(self, step: int, what: str) -> Spread:
        """By parameter, how far rounding alone moves ``what`` at a step, counted from 0. A single
        value that is computed in 16 bits moves by half an ulp, or by chance in no perturbed run."""
        key = step, what
        if key not in self._spreads:
            right = self._named(self.steps, step, what)
            others = [self._named(run, step, what) for run in self.rounded if step < len(run)]
            found = vectors.spread(others, right)
            if coarse := self.steps[step].get("coarse", 0.0) / 2:
                single = {n: vectors.length(v) for n, v in right.items() if v.size == 1}
                found |= {n: max(found[n], coarse * size) for n, size in single.items()}
            if what in ("update", "before"):  # at least an ulp of the largest weight
                eps, largest = self.steps[step]["eps"], self.steps[step]["largest"]
                found = {n: max(s, eps[n] * largest[n]) for n, s in found.items()}
            self._spreads[key] = found
        return self._spreads[key]

    def _named(self, steps: Sequence[Step], step: int, what: str) -> Any:
        """What a step has of each parameter; of updates, only where they are certain."""
        named = steps[step][what] or {}
        return vectors.masked(named, self.certain(step)) if what == "update" else named

    def certain(self, step: int) -> dict[str, Any]:
        """Which values had gradients above rounding in all steps until this one."""
        if step not in self._certain:
            kept = vectors.certain(self.steps[step]["grad"], self.spread(step, "grad"))
            for name, before in (self.certain(step - 1) if step else {}).items():
                kept[name] = kept[name] & before if name in kept else before
            self._certain[step] = kept
        return self._certain[step]

    def decided(self, step: int) -> float:
        """The share (0 to 1) of the values whose updates are compared."""
        kept = self.certain(step).values()
        return sum(float(k.sum()) for k in kept) / max(sum(k.size for k in kept), 1)

    @property
    def dead(self) -> list[str]:
        """The parameters that have a gradient of 0 in every step: they are equal in all layouts,
        whatever these do with gradients."""
        gradients = [step["grad"] for step in self.steps]
        return [n for n in gradients[0] if not any(one[n].any() for one in gradients if n in one)]

    def ends(self, step: int) -> bool:
        """Whether a step is that of the end of the data, which has fewer rows."""
        first, last = (sum(map(len, self.steps[n]["rows"])) for n in (0, step))
        return last < first

    def loss(self, step: int) -> float:
        return float(sum(self.steps[step]["losses"]))

    def loss_spread(self, step: int) -> float:
        right = self.loss(step)
        found = [sum(run[step]["losses"]) - right for run in self.rounded if step < len(run)]
        size = max(abs(right), self._of_summands(step))
        return max([abs(f) for f in found if finite(f)] + [LOSS_LEAST * size])

    def _of_summands(self, step: int) -> float:
        """How large the summands of a loss may be that cancel each other, as where advantages have
        the mean 0: as much as it would change with the weights, if all went along its gradient."""
        first, gradient = self.steps[0], self.steps[step]["raw"] or self.steps[step]["grad"]
        size = vectors.norm(first.get("before", {})) * vectors.norm(gradient)
        return size if finite(size) else 0.0


@dataclass(frozen=True)
class Moment:
    """A step of a layout beside the same step of the reference."""

    reference: Reference
    number: int
    """The step in the reference, from 0."""
    here: list[Step]
    """By rank."""
    layout: Layout
    first: bool
    """Whether it is the first step of the layout."""
    same_rows: bool

    @property
    def right(self) -> Step:
        return self.reference.steps[self.number]

    @property
    def clipping(self) -> bool:
        """Whether gradients were clipped where hooks see it, in both."""
        return bool(self.right["raw"]) and all(one["raw"] for one in self.here)

    def owned(self, rank: int, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of named things, those of parameters that the rank has as a whole: a stage of a pipeline
        has some, and a rank of tensor parallelism has parts of others.

        What no rank has counts as every rank's: it is missing.
        """
        if not self.same_rows:
            return named
        held = [set(one["update"]) for one in self.here]
        others = set().union(*held) - held[rank] | set(self.parts_of(rank))
        return {name: one for name, one in named.items() if name.partition(" ")[0] not in others}

    def parts_of(self, rank: int) -> list[str]:
        """The parameters of which a rank has only a part, without anything that says which."""
        mine, right = self.here[rank]["update"], self.right["update"]
        return [name for name in mine if name in right and mine[name].shape != right[name].shape]

    def spread(self, what: str) -> Spread:
        return self.reference.spread(self.number, what)


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


def as_in(right: Step, steps: Sequence[Step]) -> list[Step]:
    """A rank's steps with the names that the reference has for the same parameters."""
    if not steps:
        return []
    here, there = set(steps[0]["update"]), set(right["update"])
    named = _numbered(steps[0].get("stage"), here, there) or _renaming(here, there)
    return [_renamed(step, named) for step in steps] if named else list(steps)


def _numbered(stage: int | None, here: set[str], there: set[str]) -> Callable[[str], str] | None:
    """What puts the number of a rank's first stage before the names of its parameters, if the
    reference has all of them like that."""

    def named(name: str) -> str:
        return f"{stage}.{name}" if f"{stage}.{name}" in there else name

    found = {named(name) for name in here}
    return named if stage is not None and found != here and found <= there else None


def _renaming(here: set[str], there: set[str]) -> Callable[[str], str] | None:
    """What makes the names that are here those that are there: a prefix less, or one more."""
    if not here or here & there:
        return None
    first = min(here)
    for other in there:
        for named in (
            partial(_without, first.removesuffix(other)),
            partial(_with, other.removesuffix(first)),
        ):
            if {named(name) for name in here} <= there:
                return named
    return None


def _without(prefix: str, name: str) -> str:
    return name.removeprefix(prefix) if prefix.endswith(".") else name


def _with(prefix: str, name: str) -> str:
    return prefix + name if prefix.endswith(".") else name


def _renamed(step: Step, named: Callable[[str], str]) -> Step:
    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        return {named(name): value for name, value in values.items()}

    found = {what: of(step[what]) for what in BY_NAME if step.get(what)}
    return {**step, **found, "parts": [of(part) for part in step["parts"]]}
