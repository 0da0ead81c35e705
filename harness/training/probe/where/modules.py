"""The first module, in the order of a step, whose tensors are not those of the reference."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.rank import compare
from harness.rank.compare import SAFE, Named
from harness.training.probe.compare.faults import NEAR, Place, Stage, of_stage, undetermined
from harness.training.probe.where.digests import (
    WHOLE,
    Factors,
    Key,
    Recorded,
    distance,
    factors_of,
    is_comparable,
    unsure,
)

MATERIAL = 0.01
"""What is off by less than this part of what the gradient is off by is not its cause."""

SITE = "site-packages" + os.sep

OF_TORCH = os.path.join("torch", "nn", "modules") + os.sep
"""Files whose lines say nothing about a user's model."""


@dataclass(frozen=True)
class Evidence:
    """A step of a layout and of the reference, with what their modules did."""

    recorded: Recorded
    reference: Recorded
    perturbed: Recorded
    off: float
    """How far the gradient is from the reference's, as a part of it."""
    coarser: float = 0.0
    """One ulp of 1 in the types of the layout, if another environment computes in fewer bits than
    the reference; otherwise 0."""

    @cached_property
    def factors(self) -> Factors | None:
        """By micro-batch, how many times the reference's gradient it begins with; None if it is
        not known."""
        key = self.first_gradient
        return factors_of(key, self.recorded, self.reference) if key is not None else None

    @cached_property
    def first_gradient(self) -> Key | None:
        """The first gradient with rows, as the loss gives it."""
        return next(
            (
                key
                for key in self.recorded.in_order(gradient=True)
                if is_comparable(key, self.recorded, self.reference)
                and self.recorded.samples[key][0].digest["rows"] != WHOLE
                and factors_of(key, self.recorded, self.reference)
            ),
            None,
        )

    def is_from_another_rank(self, key: Key) -> bool:
        """Whether a gradient comes from the next stage of a pipeline, on another rank."""
        ranks = {one.of.rank for one in self.recorded.samples[key]}
        earlier = self.recorded.in_order(gradient=True)
        before = [k for k in earlier[: earlier.index(key)] if self.distance(k) is not None]
        ranks_before = {one.of.rank for key in before for one in self.recorded.samples[key]}
        return self.recorded.same_rows and bool(before) and not ranks & ranks_before

    def distance(self, key: Key) -> float | None:
        factors = self.factors if key.gradient else None
        return distance(key, self.recorded, self.reference, factors)

    def tolerance(self, key: Key) -> float:
        rounding = SAFE * unsure(key, self.perturbed, self.reference)
        return max(rounding, self.least)

    @property
    def least(self) -> float:
        """What is off by less is not the cause."""
        return max(MATERIAL * min(self.off, 1.0), SAFE * self.coarser / 2)

    def is_wrong(self, key: Key) -> bool:
        far = self.distance(key)
        return far is not None and not far <= self.tolerance(key)


def first_place(evidence: Evidence) -> Place | None:
    """The module in whose forward, or else in whose backward, the layout parts from the reference.
    None if all agree, or if nothing can be compared."""
    for gradient in (False, True):
        if gradient and evidence.factors is None:
            return None
        first = evidence.first_gradient
        if gradient and first is not None and evidence.is_wrong(first):  # no multiple of it
            return of_stage(Stage.LOSS, ": its gradient has another direction")
        wrong_keys = (k for k in evidence.recorded.in_order(gradient) if evidence.is_wrong(k))
        if (key := next(wrong_keys, None)) is not None:
            return _place(evidence, key)
    return _of_parameters(evidence)


def unlike_factors(evidence: Evidence) -> bool:
    """Whether the micro-batches begin their backward with unlike factors."""
    factors = [*(evidence.factors or {}).values()]
    key = evidence.first_gradient
    if not factors or key is None:
        return False
    within = max(NEAR, evidence.tolerance(key))
    return max(factors) - min(factors) > within * max(map(abs, factors))


def _place(evidence: Evidence, key: Key) -> Place:
    """The module in whose own code a tensor becomes wrong, if it is the first one: what a module
    returns comes from itself, what it is given from the module that calls it."""
    name = key.module, key.often
    from_itself = key.is_input == key.gradient
    if from_itself and not _blind(evidence, key):
        return _named(evidence, name, Stage.BACKWARD if key.gradient else Stage.FORWARD)
    parent = evidence.recorded.calls[name]["parent"]
    direction = Stage.BACKWARD if key.gradient else Stage.FORWARD
    call = evidence.recorded.calls[name]
    if key.gradient and not from_itself and _is_of_loss(evidence, key):
        text = f": what it does with an output of {_called(call)}"
        return of_stage(Stage.LOSS, text)
    if key.gradient and not from_itself and evidence.is_from_another_rank(key):
        text = f"{direction}, between two ranks: the gradient that {_called(call)} gets"
        return Place(direction, text)
    if parent is None and not key.gradient and evidence.recorded.same_rows:
        # What a stage of a pipeline is given comes from another rank.
        return undetermined("the ranks have parts of the model, not of the rows")
    if parent is None:
        text = f"{direction}, outside of the modules, at the call of {_called(call)}"
        return Place(direction, text)
    side = "after" if key.gradient and not key.is_input else "before"
    title = call["name"].removeprefix(f"{parent[0]}.") or call["kind"]
    how = "" if from_itself else f", {side} it {'called' if side == 'after' else 'calls'} {title}"
    if how and side == "after":  # a hook or an auxiliary loss may have taken it elsewhere
        how += ", or of what else uses its output"
    return _named(evidence, parent, direction, how, 0 if from_itself else call["line"])


def _is_of_loss(evidence: Evidence, key: Key) -> bool:
    """Whether only a loss can give an output the wrong part of its gradient: the model returns the
    output, or its own code uses what a module deep inside returns."""
    name = key.module, key.often
    parent = evidence.recorded.calls[name]["parent"]
    if evidence.recorded.same_rows:  # a stage of a pipeline returns its output to another rank
        return False
    is_deep = parent is not None and evidence.recorded.calls[parent]["parent"] is not None
    return parent is None or (is_deep and key.label in evidence.recorded.calls[name]["used"])


def _blind(evidence: Evidence, key: Key) -> bool:
    """Whether nothing on the other side of a module can be compared, so that the fault may be in
    what comes before it."""
    prefix = "out " if key.is_input else "in "
    sides = [
        k
        for k in evidence.recorded.samples
        if k[:2] == key[:2] and k.gradient == key.gradient and k.label.startswith(prefix)
    ]
    comparable = (is_comparable(k, evidence.recorded, evidence.reference) for k in sides)
    has_parent = evidence.recorded.calls[key[:2]]["parent"] is not None
    return has_parent and bool(sides) and not any(comparable)


def _named(
    evidence: Evidence, name: tuple[str, int], direction: Stage, how: str = "", line: int = 0
) -> Place:
    """A module as a place, with the line of its forward, or that of its call."""
    call = evidence.recorded.calls[name]
    file, own_line = call["source"]
    parent = evidence.recorded.calls[name]["parent"]
    while OF_TORCH in file and parent is not None:  # the line of the call says more
        file, line_of_parent = evidence.recorded.calls[parent]["source"]
        own_line, line = evidence.recorded.calls[name]["line"] or line_of_parent, 0
        name, parent = parent, evidence.recorded.calls[parent]["parent"]
    at, line = "", line or own_line
    if file and OF_TORCH not in file:  # in a package, by its path in site-packages
        short = file.rpartition(SITE)[2] if SITE in file else Path(file).name
        at = f"{short}:{line}" if line else short
    again = ", computed again for the backward," if call["again"] else ""
    text = f"{direction}{again} of {_called(call, at)}{how}"
    return Place(direction, text, call["name"], call["kind"], *((file, line or None) if at else ()))


def _called(call: Mapping[str, str], at: str = "") -> str:
    """The name of a module that was called, with its class and a line."""
    remark = ", ".join(filter(None, (call["name"] and call["kind"], at)))
    title = call["name"] or call["kind"]
    return f"{title} ({remark})" if remark else title


def _of_parameters(evidence: Evidence) -> Place | None:
    """The module whose parameters get another gradient, though its inputs get the right one."""
    whole = _gradients(evidence.reference, {})
    parts = [part for steps in evidence.recorded.run.ranks for part in steps[-1].parts]
    shards = {  # of which a rank has only a part, as under tensor parallelism
        n for part in parts for n, g in part.items() if n in whole and g.shape != whole[n].shape
    }
    expected = {name: gradient for name, gradient in whole.items() if name not in shards}
    if not expected or evidence.factors is None:
        return None
    actual = _gradients(evidence.recorded, evidence.factors, shards)
    rounding = compare.spread([_gradients(evidence.perturbed, {})], expected)
    far = compare.distances(actual, expected)
    off = [
        name
        for name in compare.astray(actual, expected, rounding)
        if far[name] > evidence.least * compare.length(expected[name])
    ]
    if not off or 2 * len(off) > len(expected):
        return None
    # What the optimizer steps with: a temperature that is returned may be right in the end.
    ends = [one.run.ranks[0][-1].grad for one in (evidence.recorded, evidence.reference)]
    end = evidence.perturbed.run.ranks[0][-1].grad
    both = {name: ends[1][name] for name in ends[1] if name in ends[0]}
    if not compare.astray(ends[0], both, compare.spread([end], both)).keys() & set(off):
        text = f": it scales the gradients of the others, and not that of {off[0]}"
        return of_stage(Stage.LOSS, text)
    order = [key.module for key in evidence.recorded.in_order(gradient=True)]
    owners = {_owner(evidence, name): name for name in reversed(off)}
    placed = sorted(owners, key=lambda name: order.index(name) if name in order else sys.maxsize)
    if not placed or placed[0] not in order:
        return None
    parameter = owners[placed[0]].removeprefix(placed[0]).removeprefix(".")
    number = next(often for name, often in evidence.recorded.calls if name == placed[0])
    how = f": the gradient of {parameter}"
    return _named(evidence, (placed[0], number), Stage.BACKWARD, how)


def _owner(evidence: Evidence, parameter: str) -> str:
    """The module that has a parameter."""
    names = {name for name, _ in evidence.recorded.calls}
    while parameter not in names and parameter:
        parameter = parameter.rpartition(".")[0]
    return parameter


def _gradients(recorded: Recorded, factors: Factors, shards: Collection[str] = ()) -> Named:
    """The sum of the micro-batches' gradients of each parameter, divided by their factors; without
    those of ``shards``."""
    sums: dict[str, compare.Array] = {}
    for rank, steps in enumerate(recorded.run.ranks):
        for number, part in enumerate(steps[-1].parts):
            factor = next((f for of, f in factors.items() if of == (rank, number)), 1.0)
            for name, gradient in part.items():
                if name not in shards:
                    sums[name] = sums.get(name, 0.0) + gradient.astype(float) / factor
    return sums
