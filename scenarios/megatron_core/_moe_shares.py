"""How much of the task's and of the auxiliary loss's gradient did a step of SGD apply?

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from harness.bugs import api
from scenarios.common import gradient
from scenarios.common.gradient import TOLERANCE

EXPERTS, HIDDEN = 4, 8

Gradient = Annotated[list[float], api.alike(api.many(api.NUMBER, EXPERTS * HIDDEN))]


@dataclass(frozen=True)
class Step(api.Entry):
    task: Gradient
    auxiliary: Gradient
    applied: Gradient
    shared: Annotated[bool, api.alike(api.FLAG)]
    """Whether the ranks shared the sequence."""

    def has(self, task: float, auxiliary: float) -> bool:
        """Whether the step applied just these shares of the two gradients."""
        its_task, its_auxiliary, remainder = self.shares
        return (
            api.near(its_task, task, share=TOLERANCE)
            and api.near(its_auxiliary, auxiliary, share=TOLERANCE)
            and remainder <= TOLERANCE
        )

    @property
    def shares(self) -> tuple[float, float, float]:
        """How many times the task's and the auxiliary loss's gradient were applied, by least
        squares, and the rest, as a fraction of what was applied."""
        t, a, x = self.task, self.auxiliary, self.applied
        tt, ta, aa, tx, ax = _dot(t, t), _dot(t, a), _dot(a, a), _dot(t, x), _dot(a, x)
        determinant = tt * aa - ta * ta
        task, auxiliary = (tx * aa - ax * ta) / determinant, (ax * tt - tx * ta) / determinant
        remainders = [c - task * u - auxiliary * v for c, u, v in zip(x, t, a, strict=True)]
        return task, auxiliary, math.sqrt(_dot(remainders, remainders) / _dot(x, x))


def _dot(u: Sequence[float], v: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(u, v, strict=True))


def shared(records: api.Records) -> api.Exercise:
    """The ranks shared the sequence, the loss was one per token, and the auxiliary loss had a
    gradient."""
    steps, ranks = records.typed(Step), len(records.ranks)
    return (
        api.Exercise.of(
            ranks > 1 and all(step.shared for step in steps),
            f"{ranks} ranks shared the sequence",
            "no ranks shared the sequence",
        )
        & api.Exercise.needs(records.params.per_token, "the loss was a mean over each micro-batch")
        & has_auxiliary(records)
    )


def has_auxiliary(records: api.Records) -> api.Exercise:
    """The auxiliary loss had a gradient."""
    norms = [math.hypot(*step.auxiliary) for step in records.typed(Step)]
    return api.Exercise.of(
        min(norms) > 0,
        f"the auxiliary loss's gradient had norms from {min(norms):.3g}",
        "the auxiliary loss had no gradient",
    )


auxiliary = api.bars(
    "How much of the auxiliary loss's gradient was applied",
    "with the bug a fraction or a multiple of the right gradient is applied; without it, just "
    "that gradient",
    lambda records: ((f"step {step.step}", step.shares[1]) for step in records.typed(Step, rank=0)),
    "times the right gradient",
    {"right": 1.0},
)


@dataclass(frozen=True)
class Scaled(gradient.Gradient[Step]):
    """The oracle of scenarios that scale the auxiliary loss's gradient."""

    documented: Callable[[Step, api.Records], bool]
    picture: api.Pictures = auxiliary
    step = Step
    unit = "of the auxiliary loss's gradient"

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each step."""
        return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that the router's weight got another gradient than the right one."""
        finding = super().detect(records)
        return finding and replace(finding, parameters=("router.weight",))

    def is_right(self, step: Step, records: api.Records) -> bool:
        return step.has(1, 1)

    def error(self, step: Step, records: api.Records) -> float:
        return abs(step.shares[1] - 1)

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        for step in [one for one in wrong_steps if one.rank == wrong_steps[0].rank][:3]:
            task, auxiliary, remainder = step.shares
            yield (
                f"step {step.step}: applied {auxiliary:.4g} times the auxiliary loss's gradient, "
                f"{task:.4g} times the task's, and {remainder:.2g} of another direction"
            )

    @staticmethod
    def insufficient_checks(records: api.Records) -> dict[str, bool]:
        """The ranks agree, and the gradient of the loss that is watched is right."""
        steps, first_rank = records.typed(Step), records.typed(Step, rank=0)
        unlike = any(step.applied != first_rank[step.step - 1].applied for step in steps)
        task = any(not api.near(step.shares[0], 1.0, share=TOLERANCE) for step in steps)
        return {"the ranks took different steps": unlike, "the task's gradient is scaled": task}
