"""The reference, one rank with one micro-batch a step, with the spread that rounding has in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from harness.api.numbers import finite
from harness.probe import numbers
from harness.probe.layouts import Layout
from harness.probe.numbers import Spread
from harness.probe.runs import Run, Step

BY_NAME = ("before", "eps", "grad", "largest", "raw", "state", "update")
"""What a step has for each parameter; the names of a state go on after a space."""

LOSS_LEAST = 1e-7
"""The least spread of a loss, as a part of it."""


def as_one(run: Run, same_rows: bool) -> Run:
    """A run as one rank would have recorded it: with all rows, and with the parameters of all."""
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
        if found.get(what):
            found[what] = {n: v for one in reversed(ranks) for n, v in (one[what] or {}).items()}
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
        """By parameter, how far rounding alone moves ``what`` at a step, counted from 0."""
        key = step, what
        if key not in self._spreads:
            right = self._named(self.steps, step, what)
            others = [self._named(run, step, what) for run in self.rounded if step < len(run)]
            found = numbers.spread(others, right)
            if what in ("update", "before"):  # at least an ulp of the largest weight
                eps, largest = self.steps[step]["eps"], self.steps[step]["largest"]
                found = {n: max(s, eps[n] * largest[n]) for n, s in found.items()}
            self._spreads[key] = found
        return self._spreads[key]

    def _named(self, steps: Sequence[Step], step: int, what: str) -> Any:
        """What a step has of each parameter; of updates, only where they are certain."""
        named = steps[step][what] or {}
        return numbers.masked(named, self.certain(step)) if what == "update" else named

    def certain(self, step: int) -> dict[str, Any]:
        """Which values had gradients above rounding in all steps until this one."""
        if step not in self._certain:
            kept = numbers.certain(self.steps[step]["grad"], self.spread(step, "grad"))
            for name, before in (self.certain(step - 1) if step else {}).items():
                kept[name] = kept[name] & before if name in kept else before
            self._certain[step] = kept
        return self._certain[step]

    def decided(self, step: int) -> float:
        """The share (0 to 1) of the values whose updates are compared."""
        kept = self.certain(step).values()
        return sum(float(k.sum()) for k in kept) / max(sum(k.size for k in kept), 1)

    def ends(self, step: int) -> bool:
        """Whether a step is that of the end of the data, which has fewer rows."""
        first, last = (sum(map(len, self.steps[n]["rows"])) for n in (0, step))
        return last < first

    def loss(self, step: int) -> float:
        return float(sum(self.steps[step]["losses"]))

    def loss_spread(self, step: int) -> float:
        right = self.loss(step)
        found = [sum(run[step]["losses"]) - right for run in self.rounded if step < len(run)]
        return max([abs(f) for f in found if finite(f)] + [LOSS_LEAST * abs(right)])


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
