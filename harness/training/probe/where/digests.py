"""What ranks recorded of the modules in one step, aligned by row, and its distances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.rank.compare import LEAST, Array, length
from harness.training.probe.runner import Run

WHOLE = "whole"
"""The dimension of a tensor that has no rows."""


class Key(NamedTuple):
    """One tensor of one call of a module in each micro-batch."""

    module: str
    often: int
    """How often the module was called before in its micro-batch."""
    label: str
    """``in``, the name of the argument and the number of the tensor in it; or ``out 0``."""
    gradient: bool

    @property
    def is_input(self) -> bool:
        return self.label.startswith("in ")


class MicroBatch(NamedTuple):
    rank: int
    number: int


@dataclass(frozen=True)
class Sample:
    """The digest of a tensor in one micro-batch."""

    of: MicroBatch
    rows: Sequence[str]
    digest: Mapping[str, Any]
    time: int

    @property
    def values(self) -> Array:
        values: Array = self.digest["values"]
        return values

    @property
    def form(self) -> tuple[Any, ...]:
        return self.digest["rows"], *self.digest["shape"]


@dataclass
class Recorded:
    """The last step of a run, by tensor. Ranks that see the same rows have those of rank 0: a later
    stage is given something else."""

    run: Run
    same_rows: bool
    samples: dict[Key, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    """The first call of a module, by its name and its number in a micro-batch."""

    def __post_init__(self) -> None:
        steps = [steps[-1] for steps in self.run.ranks]
        for rank, step in enumerate(steps):
            rows = steps[0].rows if self.same_rows else step.rows
            for call in step.places:
                name = call["name"], call["often"]
                self.calls.setdefault(name, call)
                number = call["micro_batch"]
                for gradient in (False, True) if number < len(rows) else ():
                    for label, digest in call["gradients" if gradient else "digests"].items():
                        at = call["left" if label.startswith("out") else "entered"]
                        time = call["times"][label] if gradient else at
                        key = Key(*name, label, gradient)
                        sample = Sample(MicroBatch(rank, number), rows[number], digest, time)
                        self.samples[key].append(sample)

    def in_order(self, gradient: bool) -> list[Key]:
        """The tensors, or the gradients, in the order in which the step comes to them."""
        sign = -1 if gradient else 1  # in a pipeline, the last stage is the first in the backward
        stages = self.same_rows

        def first(key: Key) -> tuple[int, int]:
            return min((sign * one.of.rank * stages, one.time) for one in self.samples[key])

        return sorted((key for key in self.samples if key.gradient == gradient), key=first)


Factors = Mapping[MicroBatch, float]


def is_comparable(key: Key, recorded: Recorded, reference: Recorded) -> bool:
    """Whether both have a tensor, of one form in all micro-batches, and of more than one number."""
    forms = {one.form for each in (recorded, reference) for one in each.samples.get(key, ())}
    both = key in recorded.samples and key in reference.samples
    return both and len(forms) == 1 and next(iter(forms)) != (WHOLE,)


def distance(
    key: Key, recorded: Recorded, reference: Recorded, factors: Factors | None = None
) -> float | None:
    """How far a tensor is from the reference's, as a part of its length; None if they cannot be
    compared. Gradients are divided by the factor of their micro-batch before."""
    if not is_comparable(key, recorded, reference):
        return None
    pairs = _pairs(key, recorded, reference, factors or {})
    if not pairs:
        return None
    off = sum(length(got - expected) ** 2 for got, expected in pairs) ** 0.5
    size = sum(length(expected) ** 2 for _, expected in pairs) ** 0.5
    if not size:
        return float("inf") if off else 0.0
    return float(off / size)


def _rows(
    key: Key, recorded: Recorded, reference: Recorded
) -> Iterator[tuple[MicroBatch, Array, Array]]:
    """The digest of each row, its micro-batch, and the reference's digest of this row."""
    of_rows = {
        row: values
        for one in reference.samples[key]
        for row, values in zip(one.rows, one.values, strict=False)
    }
    for one in recorded.samples[key]:
        for row, values in zip(one.rows, one.values, strict=False):
            if row in of_rows:
                yield one.of, values, of_rows[row]


def _pairs(
    key: Key, recorded: Recorded, reference: Recorded, factors: Factors
) -> list[tuple[Array, Array]]:
    samples = recorded.samples[key]
    if samples[0].digest["rows"] == WHOLE:
        expected = reference.samples[key]
        if not key.gradient:
            return [(one.values, expected[0].values) for one in samples]
        got, expected_mean = (
            sum((one.values / by.get(one.of, 1.0) for one in each), each[0].values * 0)
            for each, by in ((samples, factors), (expected, {}))
        )
        return [(got, expected_mean)]
    rows = _rows(key, recorded, reference)
    return [(got / factors.get(of, 1.0), expected) for of, got, expected in rows]


def unsure(key: Key, perturbed: Recorded, reference: Recorded) -> float:
    """How far rounding moves a tensor, as a part of its length."""
    samples = reference.samples[key]
    least = max([LEAST, *(one.digest["eps"] / 2 for one in samples)])
    return max(distance(key, perturbed, reference) or 0.0, least)


def factors_of(key: Key, recorded: Recorded, reference: Recorded) -> dict[MicroBatch, float]:
    """By micro-batch, how many times the reference's gradient it has for its rows."""
    products, squares = defaultdict[MicroBatch, float](float), defaultdict[MicroBatch, float](float)
    for of, got, expected in _rows(key, recorded, reference):
        products[of] += float((got * expected).sum())
        squares[of] += float((expected * expected).sum())
    factors = {of: products[of] / square for of, square in squares.items() if square}
    if recorded.same_rows:  # a micro-batch goes through all ranks
        by_number = {of.number: factor for of, factor in factors.items()}
        ranks = range(len(recorded.run.ranks))
        factors = {MicroBatch(r, n): factor for n, factor in by_number.items() for r in ranks}
    return factors
