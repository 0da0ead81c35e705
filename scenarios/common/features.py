"""Does a training with a feature apply the gradient that the same rows have without it?

Packing, tensor parallelism, checkpointing and the like must not change a gradient. Upstream's own
model gives three gradients at the same weights: with the feature, as a user trains; without it,
which is right; and one without the feature that has the documented fault, made by other means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import usual_checks
from scenarios.common.gradient import TOLERANCE, Gradient

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 1e-4
"""A gradient that is smaller than this part of the gradient of all parameters counts as that large:
where it would be 0 without rounding, its direction means nothing."""

Gradients = Mapping[str, "Tensor"]
COMPARED = api.by_name(api.many(api.SIZE, 3), least=1)
"""The shape of ``Step.gradients``."""


@dataclass(frozen=True)
class Step(api.Entry):
    loss: api.Number
    gradients: dict[str, list[float]]
    """For each parameter: the norm of its right gradient, and how far the applied one is from the
    right one and from the documented one, as fractions."""

    @property
    def off(self) -> dict[str, float]:
        """How far the gradients of parameters are off, if they are wrong."""
        return {name: off for name, (_, off, _) in self.gradients.items() if off > TOLERANCE}

    @property
    def farthest(self) -> float:
        """How far the gradient is off that is farthest from the right one."""
        return max(off for _, off, _ in self.gradients.values())


farthest = api.bars(
    "The gradient that is farthest from the right one",
    "without the bug, all parameters have the gradient that they have without the feature",
    lambda records: ((f"step {s.step}", s.farthest) for s in records.typed(Step, rank=0)),
    "distance, as a part of the right gradient",
)


@dataclass(frozen=True)
class Feature(Gradient[Step]):
    """The oracle of scenarios in which a feature of a model changes gradients.

    Without a parameter ``steps`` there is one step."""

    reason: str
    checks: Sequence[api.Check] = (usual_checks.loss_ends_higher,)
    picture: api.Pictures = farthest
    step = Step
    unit = "of the right gradient of a parameter"

    def plan(self, at: api.Position) -> api.Plan:
        """Each step, with the gradient of each parameter."""
        facts = Step.shapes(gradients=api.alike(COMPARED))
        return {"step": api.Kind(facts, api.each(getattr(at.params, "steps", 1)))}

    def is_right(self, step: Step, records: api.Records) -> bool:
        return not step.off

    def documented(self, step: Step, _: api.Records) -> bool:
        """Some gradients are not those without the feature, but those that the fault gives."""
        return all(min(off, away) <= TOLERANCE for _, off, away in step.gradients.values())

    def error(self, step: Step, records: api.Records) -> float:
        return step.farthest

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        step = wrong_steps[0]
        worst = max(step.off, key=step.off.__getitem__)
        yield (
            f"step {step.step}: the gradients of {len(step.off)} of {len(step.gradients)} "
            f"parameters are wrong; that of {worst} is off by {step.off[worst]:.3g} of its norm"
        )


def record(
    ctx: api.Context,
    step: int,
    loss: Tensor,
    actual: Gradients,
    expected: Gradients,
    documented: Gradients,
    **more: float,
) -> None:
    """Record a step: its loss, and how its gradients compare with ``expected`` and ``documented``.
    All gradients are by name of the parameter. ``more`` are other facts of the step."""
    norms = {name: float(gradient.double().norm()) for name, gradient in expected.items()}
    floor = FLOOR * math.hypot(*norms.values())

    def off(name: str, gradients: Gradients) -> float:
        return float((actual[name] - gradients[name]).double().norm()) / max(norms[name], floor)

    facts = {n: [norm, off(n, expected), off(n, documented)] for n, norm in norms.items()}
    ctx.record("step", step, loss=float(loss.detach()), gradients=facts, **more)


def gradients(model: Any) -> dict[str, Tensor]:
    """A copy of all gradients, by name; zeros where there is none."""
    import torch

    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for name, p in model.named_parameters()
    }


def of_losses(model: Any, losses: Sequence[Tensor]) -> dict[str, Tensor]:
    """The gradients of the mean of these losses, by name of the parameter."""
    import torch

    leaves = dict(model.named_parameters())
    mean = torch.stack(list(losses)).mean()
    tensors = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if tensor is None else tensor
        for (name, leaf), tensor in zip(leaves.items(), tensors, strict=True)
    }
