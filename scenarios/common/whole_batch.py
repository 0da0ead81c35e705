"""Is the gradient of a loss over N ranks that of one process with the whole batch?

A contrastive loss compares each row with all others. Each rank has some of the rows: it gathers the
others, and gradients must reach these rows, too. The loss is upstream's, and so is the reference:
the same loss in one process, on all rows and the same weights. DDP averages the ranks' gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from harness.bugs import api
from harness.detectors import arithmetic
from scenarios.common import plain_loss, usual_checks
from scenarios.common.gradient import TOLERANCE, Gradient

if TYPE_CHECKING:
    from torch import Tensor

STRAIGHT = 1 - 1e-4
"""The least cosine of a gradient with the right direction."""
FEATURES, WIDTH, VIEWS, CLASSES = 16, 8, 2, 4
RATE = 0.05
"""Of SGD."""

Number = Annotated[float, api.alike(api.NUMBER)]
Size = Annotated[float, api.alike(api.SIZE)]
"""The same on all ranks."""

Part = tuple["Tensor", "Tensor"]
"""Outputs of the model [rows, views, width], and the class of each row [rows]."""
Loss = Callable[["Tensor", "Tensor"], "Tensor"]
"""A loss of a part."""


def joined(parts: Sequence[Part]) -> Part:
    """The rows of all ranks, in the order of the ranks."""
    import torch

    outputs, labels = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(labels)


@dataclass(frozen=True)
class Beside(api.Fields):
    """A gradient beside another one."""

    ratio: Number
    """How many times the other one is in it, along its direction."""
    cosine: Number

    @property
    def equal(self) -> bool:
        """Whether the gradients are equal."""
        return api.near(self.ratio, 1, share=TOLERANCE) and self.cosine >= STRAIGHT


@dataclass(frozen=True)
class Step(Beside, api.Entry):
    """The gradient that a step applied, beside that of one process."""

    gradient: Size
    """The norm of the right gradient."""
    applied: Size
    """The norm of the one that was applied."""
    loss: api.Number
    reference_loss: Number
    documented: Beside
    """Beside the gradient of the documented loss."""

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.ratio:.4g} times the gradient of one process with all rows "
            f"along its direction, cosine {self.cosine:.4f} (norm {self.applied:.4g}, right: "
            f"{self.gradient:.4g})"
        )


first_gradient = api.bars(
    "The gradient of the first step beside that of one process",
    "without the bug the gradient over several ranks is that of one process with all rows",
    lambda records: (
        (name, step[fact])
        for step in records.of("step", 0)[:1]
        for name, fact in (("times its length", "ratio"), ("cosine", "cosine"))
    ),
    limits={"right": 1.0},
)


@dataclass(frozen=True)
class WholeBatch(Gradient[Step]):
    """The oracle of scenarios whose loss compares the rows of all ranks.

    It needs the parameters ``rows`` and ``steps``."""

    documented: Callable[[Any, Sequence[Part]], Tensor]
    """A loss in one process, of the reference's loss and the ranks' parts, whose gradient the ranks
    apply with the bug. Its docstring is the symptom on the bug's page."""
    reason: str
    scales: Callable[[int], Sequence[float]] = lambda ranks: (1,)
    """How many times the reference's loss the mean of the ranks' losses may be: some upstreams
    report a multiple."""
    step = Step
    checks = (usual_checks.loss_ends_higher,)
    picture: api.Pictures = first_gradient

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each step, with a comparison of the applied gradient and that of one process."""
        return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}

    def train(self, ctx: api.Context, loss: Loss, alone: Loss) -> None:
        """Train a linear map under DDP, and record each step; the process group must exist.

        ``loss`` is upstream's loss of this rank's rows, and ``alone`` is the same loss of all rows
        in one process.
        """
        import copy

        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(ctx.seed)
        model: Any = torch.nn.Linear(FEATURES, WIDTH, bias=False).to(ctx.device)
        ddp = DistributedDataParallel(model)
        rows, labels = _batch(ctx)
        mine, classes = (whole.chunk(ctx.world_size)[ctx.rank] for whole in (rows, labels))
        for step in api.each(ctx.params.steps):
            plain = copy.deepcopy(model)
            reference = alone(plain(rows), labels)
            split = (whole.chunk(ctx.world_size) for whole in (plain(rows), labels))
            documented = self.documented(alone, list(zip(*split, strict=True)))
            expected, faulty = (_gradient(loss, plain) for loss in (reference, documented))
            value = loss(ddp(mine), classes)
            value.backward()
            gradient = model.weight.grad.double().flatten()
            with torch.no_grad():
                model.weight -= RATE * model.weight.grad
            model.weight.grad = None
            ctx.record(
                "step",
                step,
                loss=float(value.detach()),
                reference_loss=float(reference.detach()),
                gradient=float(expected.norm()),
                applied=float(gradient.norm()),
                **_beside(gradient, expected),
                documented=_beside(gradient, faulty),
            )

    def is_right(self, step: Step, records: api.Records) -> bool:
        return step.equal

    def is_documented(self, step: Step, records: api.Records) -> bool:
        return step.documented.equal

    def error(self, step: Step, records: api.Records) -> float:
        """The distance from the right gradient, as a part of its norm."""
        aside = (step.applied / step.gradient) ** 2 - step.ratio**2
        return math.sqrt((step.ratio - 1) ** 2 + max(aside, 0))

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterable[str]:
        return [str(wrong_steps[0])]

    def odd(self, records: api.Records) -> list[str]:
        """The mean of the ranks' losses is not that of one process."""
        scales = self.scales(len(records.ranks))
        losses = (plain_loss.loss_wrong(records, parts=True, scale=scale) for scale in scales)
        return min(map(list, losses), key=len)[:1]


def averaged(alone: Loss, parts: Sequence[Part]) -> Tensor:
    """Each step applied the gradient of one process, divided by the number of ranks."""
    return alone(*joined(parts)) / len(parts)


Averaged = partial(
    WholeBatch, averaged, "exactly that follows if DDP averages gradients that must be added"
)
"""The oracle of a loss whose gradients must be added; its argument is ``scales``."""


def several(records: api.Records) -> api.Exercise:
    """Several ranks compared their rows with each other."""
    ranks = len(records.ranks)
    return api.Exercise.of(
        ranks > 1, f"a loss over the rows of {ranks} ranks", "there was one rank"
    )


def _batch(ctx: api.Context) -> tuple[Tensor, Tensor]:
    """Pairs of views [rows, views, features], the same on all ranks, and their classes."""
    import torch

    generator = torch.Generator().manual_seed(ctx.seed + 1)
    rows = torch.randn(ctx.params.rows, 1, FEATURES, generator=generator)
    noise = torch.randn(ctx.params.rows, VIEWS, FEATURES, generator=generator)
    labels = torch.arange(ctx.params.rows) % CLASSES
    return (rows + noise / 2).to(ctx.device), labels.to(ctx.device)


def _gradient(loss: Tensor, model: Any) -> Tensor:
    """The gradient of the weight, in fp64 and flat."""
    import torch

    (gradient,) = torch.autograd.grad(loss, [model.weight])
    return gradient.double().flatten()


def _beside(gradient: Tensor, expected: Tensor) -> dict[str, float]:
    projection = arithmetic.projection(gradient, expected)
    return {"ratio": projection.ratio, "cosine": projection.cosine}
