"""How much of the task's and of the auxiliary loss's gradient did a step of SGD apply?

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.bugs import api

EXPERTS, HIDDEN = 4, 8

WITHIN = 1e-3
"""How far a share may be from the right one; rounding in fp32 moves it by 1e-6."""


@dataclass
class Params(api.Knobs):
    """Of a training of the router."""

    per_token: bool = api.knob(True, about="calculate_per_token_loss")
    masked: bool = api.knob(True, about="whether the router gets a padding mask")
    coefficient: float = api.knob(0.5, above=0, about="that the auxiliary loss should have")
    times: float = api.knob(
        1.0, above=0, about="moe_aux_loss_coeff as a multiple of that coefficient"
    )
    steps: int = api.knob(3, least=1, about="of training")
    lr: float = api.knob(0.5, above=0, about="of SGD")


@dataclass(frozen=True)
class Shares:
    """``applied`` is ``task`` times the task's gradient, ``auxiliary`` times the other, and a
    rest."""

    task: float
    auxiliary: float
    rest: float
    """As a fraction of what was applied."""

    def are(self, task: float, auxiliary: float) -> bool:
        """Whether a step applied just these shares."""
        parts = api.near(self.task, task, share=WITHIN) and api.near(
            self.auxiliary, auxiliary, share=WITHIN
        )
        return parts and self.rest <= WITHIN


def of(step: api.Record) -> Shares:
    """The shares that are nearest to what a step applied, by least squares."""
    t, a, applied = step["task"], step["auxiliary"], step["applied"]
    tt, ta, aa, tx, ax = _dot(t, t), _dot(t, a), _dot(a, a), _dot(t, applied), _dot(a, applied)
    determinant = tt * aa - ta * ta
    task = (tx * aa - ax * ta) / determinant
    auxiliary = (ax * tt - tx * ta) / determinant
    remainder = [x - task * y - auxiliary * z for x, y, z in zip(applied, t, a, strict=True)]
    return Shares(task, auxiliary, math.sqrt(_dot(remainder, remainder) / _dot(applied, applied)))


def _dot(u: Sequence[float], v: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(u, v, strict=True))


def shared(records: api.Records) -> api.Exercise:
    """The ranks shared the sequence, the loss was one per token, and the auxiliary loss had a
    gradient."""
    steps, ranks = records.of("step"), len(records.ranks)
    norms = [math.sqrt(_dot(step["auxiliary"], step["auxiliary"])) for step in steps]
    return (
        api.Exercise.of(
            ranks > 1 and all(step["shared"] for step in steps),
            f"{ranks} ranks shared the sequence",
            "no ranks shared the sequence",
        )
        & api.Exercise.needs(records.params.per_token, "the loss was a mean over each micro-batch")
        & api.Exercise.of(
            min(norms) > 0,
            f"the auxiliary loss's gradient had norms from {min(norms):.3g}",
            "the auxiliary loss had no gradient",
        )
    )


auxiliary = api.bars(
    "How much of the auxiliary loss's gradient was applied",
    "with the bug a fraction or a multiple of the right gradient is applied; without it, just "
    "that gradient",
    lambda records: (
        (f"step {step['step']}", of(step).auxiliary) for step in records.of("step", 0)
    ),
    "times the right gradient",
    {"right": 1.0},
)


@dataclass(frozen=True)
class Scaled:
    """The oracle of scenarios that scale the auxiliary loss's gradient."""

    documented: Callable[[api.Records], float]
    """What it is multiplied with. Its docstring is the symptom on the bug's page."""
    picture: api.Pictures = auxiliary

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """For each step the three gradients, [experts * hidden], and whether the ranks shared the
        sequence."""
        flat = api.alike(api.many(api.NUMBER, EXPERTS * HIDDEN))
        step = {"task": flat, "auxiliary": flat, "applied": flat, "shared": api.alike(api.FLAG)}
        return {"step": api.Kind(step, api.each(at.params.steps))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that steps applied another share of the auxiliary loss's gradient than all of
        it; documented if each applied the task's gradient as it is."""
        steps = [(step, of(step)) for step in records.of("step")]
        faults = [(step, shares) for step, shares in steps if not shares.are(1.0, 1.0)]
        if not faults:
            return None
        example, _ = faults[0]
        lines = [
            f"step {step['step']}: applied {shares.auxiliary:.4g} times the auxiliary loss's "
            f"gradient, {shares.task:.4g} times the task's, and {shares.rest:.2g} of another "
            "direction"
            for step, shares in faults
            if step["rank"] == example["rank"]
        ]
        return api.Finding(
            "\n".join(lines[:3]),
            step=example["step"],
            parameters=("router.weight",),
            ranks=records.ranks,
            magnitude=max(abs(shares.auxiliary - 1) for _, shares in faults),
            unit="of the auxiliary loss's gradient",
            documented=all(shares.are(1.0, self.documented(records)) for _, shares in steps),
        )

    @staticmethod
    def insufficient_checks(records: api.Records) -> dict[str, bool]:
        """The ranks agree, and the gradient of the loss that is watched is right."""
        steps = records.of("step")
        of_rank_0 = records.of("step", 0)
        unlike = any(step["applied"] != of_rank_0[step["step"] - 1]["applied"] for step in steps)
        task = any(not api.near(of(step).task, 1.0, share=WITHIN) for step in steps)
        return {"the ranks took different steps": unlike, "the task's gradient is scaled": task}
