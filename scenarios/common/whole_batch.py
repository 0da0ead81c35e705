"""Is the gradient of a loss over N ranks that of one process with the whole batch?

A contrastive loss compares each row with all others. Each rank has some of the rows: it gathers the
others, and gradients must reach these rows, too. The loss is upstream's, and so is the reference:
the same loss in one process, on all rows and the same weights. DDP averages the ranks' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import usual_checks

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-3
"""How far (as a fraction) a gradient's length may be from the right one. Rounding in fp32 moves it
by 1e-6."""
STRAIGHT = 1 - 1e-4
"""The least cosine of a gradient with the right direction."""
FEATURES, WIDTH, VIEWS, CLASSES = 16, 8, 2, 4
RATE = 0.05
"""Of SGD."""

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
class WholeBatch:
    """The oracle of scenarios whose loss compares the rows of all ranks.

    It needs the parameters ``rows`` and ``steps``."""

    documented: Callable[[Any, Sequence[Part]], Tensor]
    """A loss in one process, of the reference's loss and the ranks' parts, whose gradient the ranks
    apply with the bug. Its docstring is the symptom on the bug's page."""
    then: str
    """A line for the documented finding: what explains it."""
    scales: Callable[[int], Sequence[float]] | None = lambda ranks: (1,)
    """How many times the reference's loss the mean of the ranks' losses may be: some upstreams
    report a multiple. None if the loss is not compared."""

    def plan(self, at: api.Position) -> api.Plan:
        """Each step, with a comparison of the applied gradient and that of one process."""
        beside = {name: api.alike(api.NUMBER) for name in ("ratio", "cosine")}
        facts = {"gradient": api.alike(api.SIZE), "applied": api.alike(api.SIZE), **beside}
        losses = {"loss": api.NUMBER, "reference_loss": api.alike(api.NUMBER)}
        comparison = {"documented": api.held({"ratio": api.NUMBER, "cosine": api.NUMBER})}
        return {"step": api.Kind({**losses, **facts, **comparison}, api.each(at.params.steps))}

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
        mine = rows.chunk(ctx.world_size)[ctx.rank], labels.chunk(ctx.world_size)[ctx.rank]
        for step in api.each(ctx.params.steps):
            plain = copy.deepcopy(model)
            right_gradient, reference = _gradient(plain, alone(plain(rows), labels))
            parts = zip(
                *(part.chunk(ctx.world_size) for part in (plain(rows), labels)), strict=True
            )
            wrong_gradient, _ = _gradient(plain, self.documented(alone, list(parts)))
            value = loss(ddp(mine[0]), mine[1])
            value.backward()
            gradient = model.weight.grad.double().flatten()
            with torch.no_grad():
                model.weight -= RATE * model.weight.grad
            model.weight.grad = None
            facts = {"loss": float(value.detach()), "reference_loss": reference}
            norms = {"gradient": float(right_gradient.norm()), "applied": float(gradient.norm())}
            documented = _beside(gradient, wrong_gradient)
            ctx.record(
                "step",
                step,
                **facts,
                **norms,
                **_beside(gradient, right_gradient),
                documented=documented,
            )

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that steps applied another gradient than that of one process."""
        steps = records.of("step")
        odd = next(self._losses_wrong(records), "")
        wrong_steps = [step for step in steps if not _is_right(step)]
        if not (wrong_steps or odd):
            return None
        fault = (wrong_steps or steps)[0]
        documented = (
            bool(wrong_steps) and not odd and all(_is_right(step["documented"]) for step in steps)
        )
        lines = [*filter(None, [odd]), described(fault), *[self.then] * documented]
        ranks, error = records.ranks, max(map(_error, steps))
        unit = "of the right gradient"
        return api.Finding(
            "\n".join(lines), fault["step"], (), ranks, error, unit, "step", documented
        )

    def _losses_wrong(self, records: api.Records) -> Iterator[str]:
        ranks = len(records.ranks)
        for several in zip(*(records.of("step", rank) for rank in records.ranks), strict=True):
            mean, expected = sum(s["loss"] for s in several) / ranks, several[0]["reference_loss"]
            scales = self.scales(ranks) if self.scales else ()
            if scales and not any(api.near(mean, n * expected, share=TOLERANCE) for n in scales):
                yield f"the loss of step {several[0]['step']} is {mean:.5g}, not {expected:.5g}"

    insufficient_checks = staticmethod(usual_checks.together(usual_checks.loss_ends_higher))
    """Training goes on with a wrong gradient, too."""
    picture = staticmethod(
        api.bars(
            "The gradient of the first step beside that of one process",
            "without the bug the gradient over several ranks is that of one process with all rows",
            lambda records: (
                (name, step[fact])
                for step in records.of("step", 0)[:1]
                for name, fact in (("times its length", "ratio"), ("cosine", "cosine"))
            ),
            limits={"right": 1.0},
        )
    )


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


def described(step: api.Record) -> str:
    """What one step applied, in words."""
    return (
        f"step {step['step']}: {step['ratio']:.4g} times the gradient of one process with all "
        f"rows along its direction, cosine {step['cosine']:.4f} (norm {step['applied']:.4g}, "
        f"right: {step['gradient']:.4g})"
    )


def _batch(ctx: api.Context) -> tuple[Tensor, Tensor]:
    """Pairs of views [rows, views, features], the same on all ranks, and their classes."""
    import torch

    generator = torch.Generator().manual_seed(ctx.seed + 1)
    rows = torch.randn(ctx.params.rows, 1, FEATURES, generator=generator)
    noise = torch.randn(ctx.params.rows, VIEWS, FEATURES, generator=generator)
    labels = torch.arange(ctx.params.rows) % CLASSES
    return (rows + noise / 2).to(ctx.device), labels.to(ctx.device)


def _gradient(model: Any, loss: Tensor) -> tuple[Tensor, float]:
    """The gradient of the weight, in fp64 and flat, and the loss."""
    import torch

    (gradient,) = torch.autograd.grad(loss, [model.weight])
    return gradient.double().flatten(), float(loss.detach())


def _beside(gradient: Tensor, expected: Tensor) -> dict[str, float]:
    projection = api.projection(gradient, expected)
    cosine = projection.ratio * projection.right / projection.got if projection.got else 0.0
    return {"ratio": projection.ratio, "cosine": cosine}


def _is_right(facts: api.Record) -> bool:
    return api.near(facts["ratio"], 1, share=TOLERANCE) and facts["cosine"] >= STRAIGHT


def _error(step: api.Record) -> float:
    """The distance from the right gradient, as a part of its norm."""
    along, whole = step["ratio"] - 1, step["applied"] / step["gradient"]
    return float((along**2 + max(whole**2 - step["ratio"] ** 2, 0)) ** 0.5)
