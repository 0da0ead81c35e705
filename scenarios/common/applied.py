"""Did a step of SGD apply the gradient that plain torch computes on the same rows?

``plain_torch.facts`` compares a step with plain torch; here it is judged. Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

from harness.bugs import api
from scenarios.common import plain_loss
from scenarios.common.gradient import TOLERANCE, Gradient

CUT = 1e-2
"""Combinations of the parts of a gradient that are shorter than this part of the longest one are
ignored: they would explain rounding errors by shares of any size."""


@dataclass(frozen=True)
class Beside(api.Fields):
    """What a step applied, beside the mean of plain torch's gradients of some micro-batches."""

    gradient: api.Size
    """The norm of the right gradient."""
    applied: api.Size
    """The norm of the one that was applied."""
    ratio: api.Number
    """How much of the right gradient was applied, along its direction."""
    off: api.Size
    """The part of what was applied (0 to 1) that has another direction."""
    micro: Annotated[list[float], api.many(api.NUMBER, least=1)]
    """The share of each micro-batch's gradient in what was applied: 1 each if the step is right."""
    reference_loss: api.Number

    def times(self, ratio: float) -> bool:
        """Whether the step applied ``ratio`` times the right gradient, judged by share and
        norms."""
        # ``straight`` accepts an angle that makes the norm greater by TOLERANCE.
        norms = api.near(self.applied, abs(ratio) * self.gradient, share=2 * TOLERANCE)
        share = api.near(self.ratio, ratio, share=TOLERANCE)
        return share and norms and self.straight and self.even

    @property
    def straight(self) -> bool:
        """Whether the applied gradient has the right direction."""
        return self.off <= math.sqrt(2 * TOLERANCE)

    @property
    def even(self) -> bool:
        """Whether each micro-batch has the same share in what was applied, up to what is
        ``off``."""
        off = self.off * self.applied * math.sqrt(len(self.micro))
        within = 1e-4 + off / CUT / max(self.gradient, sys.float_info.min)
        return all(api.near(share, self.ratio, within=within) for share in self.micro)

    def has(self, shares: Sequence[float], within: float = TOLERANCE) -> bool:
        """Whether the micro-batches have these shares in what was applied."""
        pairs = zip(self.micro, shares, strict=False)
        return len(shares) == len(self.micro) and all(
            api.near(share, expected, within=within) for share, expected in pairs
        )


@dataclass(frozen=True)
class Single(Beside):
    """What a step applied, beside a single gradient."""

    micro: Annotated[list[float], api.many(api.NUMBER, 1)]


@dataclass(frozen=True)
class Step(Beside, api.Entry):
    """The facts of each step."""

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.4g}" for share in self.micro)
        aside = (
            "" if self.straight else f", plus {self.off:.2g} times its norm in another direction"
        )
        several = (
            f"; each micro-batch has {shares} times its right weight"
            if self.micro[1:] or not self.even
            else ""
        )
        return (
            f"rank {self.rank}, step {self.step}: applied {self.ratio:.4g} times the right "
            f"gradient{'' if self.straight else aside} (norm {self.applied:.4g}, right: "
            f"{self.gradient:.4g}){several}"
        )


S = TypeVar("S", bound=Step)

Judge = Callable[[S, api.Records], bool]
"""Whether something holds for a step, among the records of its trial."""


def last_only(step: Step, _: api.Records) -> bool:
    """Each step applied the gradient of its last micro-batch, with its right weight, and nothing of
    the others. The losses are plain torch's."""
    return step.has([*[0] * (len(step.micro) - 1), 1])


def multiplied(step: Step, records: api.Records) -> bool:
    """Each update is the right one times the number of micro-batches."""
    return step.times(records.params.accumulation)


def divided_again(step: Step, records: api.Records) -> bool:
    """Each update is the right one divided by the number of micro-batches."""
    return step.times(1 / records.params.accumulation)


def of_first_step(wrong_steps: Sequence[Step], _: api.Records) -> Iterable[str]:
    """What each rank applied in the first of these steps."""
    return (str(step) for step in wrong_steps if step.step == wrong_steps[0].step)


def of_first(wrong_steps: Sequence[Step], _: api.Records) -> Iterable[str]:
    """What one rank applied in the first of these steps."""
    return map(str, wrong_steps[:1])


def of_each(wrong_steps: Sequence[Step], _: api.Records) -> Iterable[str]:
    """What each rank applied in each of these steps."""
    return map(str, wrong_steps)


def same_direction(records: api.Records) -> dict[str, bool]:
    """A wrong factor leaves the direction right, so this check misses it."""
    aside = any(not step.straight for step in records.typed(Step))
    return {"the applied gradient has another direction": aside}


def ratios(trials: api.Trials, by: str = "step") -> Iterator[api.Picture]:
    """A picture of how much of the right gradient each ``step`` or ``stage`` applied."""
    values = {
        (variant, f"{by} {step[by]}"): float(step["ratio"])
        for variant, records in trials.items()
        for step in records.of("step")
    }
    bars = [(*who, ratio) for who, ratio in values.items()]
    yield api.Bars(
        "How much of the gradient was applied",
        "with the bug a fraction of plain torch's gradient is applied; without the bug, all of it",
        bars,
        "times the right gradient",
        {"right": 1.0},
    )


@dataclass(frozen=True)
class Applied(Gradient[S]):
    """The oracle of scenarios whose steps apply another gradient than plain torch's mean.

    The scenario records a ``step`` in each of its ``steps`` on each rank; without such a parameter
    there is one step."""

    step: type[S]
    """What is recorded of a step: ``Step``, or a subclass with more facts."""
    documented: Judge[S]
    factor: Callable[[S, api.Records], float] = lambda step, records: 1.0
    """How much of plain torch's mean a step should apply; less than 1 if it should be clipped."""
    parts: Callable[[api.Position], int | None] = lambda at: None
    """The number of micro-batches, or of ranks, whose gradients a step should average; None if that
    is not known before."""
    facts: Callable[[api.Position], api.Facts] = lambda at: {}
    """The shapes of facts of a step that depend on the trial."""
    also: Callable[[api.Position], api.Plan] = lambda at: {}
    """What is recorded besides the steps."""
    replicas: bool = False
    """Whether all ranks apply the same."""
    loss: Literal["", "whole", "parts"] = ""
    """Whether each step has a ``loss``, to be compared with plain torch's: that of all rows, or
    that of the rank's part of them."""
    words: Callable[[Sequence[S], api.Records], Iterable[str]] = of_first_step
    """Describes the wrong steps."""
    reason: str = ""
    instead: Mapping[str, Judge[S]] = field(default_factory=dict)
    """Other bugs of the catalogue, by name, and what holds for every step with them."""
    checks: Sequence[api.Check] = ()
    """Checks that miss the bug."""
    picture: api.Pictures = ratios

    def plan(self, at: api.Position) -> api.Plan:
        """Each step, with what it applied."""
        steps = api.each(getattr(at.params, "steps", 1))
        return {self.kind: api.Kind(self.shapes(at), steps), **self.also(at)}

    def shapes(self, at: api.Position) -> api.Facts:
        """The shapes of the facts of a step."""
        micro = api.many(api.NUMBER, self.parts(at), least=1)
        shapes = self.step.shapes(micro=micro, **self.facts(at))
        if self.replicas:
            shapes = {name: api.alike(shape) for name, shape in shapes.items()}
        return {**({"loss": api.NUMBER} if self.loss else {}), **shapes}

    def is_right(self, step: S, records: api.Records) -> bool:
        return step.times(self.factor(step, records))

    def error(self, step: S, records: api.Records) -> float:
        return abs(step.ratio / self.factor(step, records) - 1)

    def describe(self, wrong_steps: Sequence[S], records: api.Records) -> Iterable[str]:
        return self.words(wrong_steps, records)

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that steps applied another gradient than plain torch's mean."""
        finding = super().detect(records)
        if not finding or finding.documented:
            return finding
        others = (name for name, judge in self.instead.items() if self.are_all(judge, records))
        return replace(finding, another=next(others, ""))

    def odd(self, records: api.Records) -> Iterable[str]:
        """The loss is not plain torch's: then what was applied explains nothing."""
        return (
            list(plain_loss.loss_wrong(records, parts=self.loss == "parts"))[:1]
            if self.loss
            else ()
        )
