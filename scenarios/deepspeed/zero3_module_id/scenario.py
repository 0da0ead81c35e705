"""At ZeRO stage 3, DeepSpeed overwrites the attribute id of a user's modules.

This affected users of DeepSpeed whose modules keep a number in ``self.id``: an expert its place, a
layer its depth, an adapter its task. At stage 3 the forward pass then reads another number, from
the first step on. The report had experts on the wrong GPUs. At stages 1 and 2 the same model is
right, and nothing is logged.

Root cause: stage 3 numbers all modules of a model for its prefetching, and kept the number in
``module.id``. Since 0.16.4 it is in ``module.ds_id``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common.gradient import TOLERANCE, Gradient

IDS = (3, 1, 2)
"""That the layers of the model give themselves."""


@dataclass(frozen=True)
class Step(api.Entry):
    loss: api.Number
    plain: api.Number
    """Of the same model, trained by plain torch."""
    numbered: api.Number
    """Of one with the numbers that the modules have under DeepSpeed."""


class Ids(Gradient[Step]):
    step = Step
    unit = "of the right loss"
    checks = ()
    reason = "exactly that follows with DeepSpeed's numbers of the layers"

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each step."""
        return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}

    def is_right(self, step: Step, records: api.Records) -> bool:
        return api.near(step.loss, step.plain, share=TOLERANCE)

    def documented(self, step: Step, records: api.Records) -> bool:
        """The loss of each step is that of the model with DeepSpeed's numbers of its layers."""
        return api.near(step.loss, step.numbered, share=TOLERANCE)

    def error(self, step: Step, records: api.Records) -> float:
        return abs(step.loss / step.plain - 1)

    def describe(self, wrong_steps: Any, records: api.Records) -> Iterator[str]:
        step = wrong_steps[0]
        yield f"step {step.step}: the loss is {step.loss:.4g}, plain torch's is {step.plain:.4g}"


oracle = Ids()

picture = api.lines(
    "The loss", "without the bug it is plain torch's", lambda s: s["loss"], y="loss"
)


def run(ctx: api.Context) -> None:
    """Train layers that multiply by a number of their own; beside it two copies, in plain torch."""
    import copy
    import os

    import torch

    from scenarios.deepspeed import _regression as regression

    # The ranks of this machine. Without it, releases before 0.16 ask numactl, which many lack.
    os.environ.setdefault("LOCAL_SIZE", str(ctx.world_size))

    class Layer(torch.nn.Linear):
        """A linear map, times a number."""

        def __init__(self, number: int) -> None:
            super().__init__(4, 4)
            self.id = number

        def forward(self, rows: Any) -> Any:
            return super().forward(rows) * self.id

    torch.manual_seed(ctx.seed)
    plain = torch.nn.Sequential(*map(Layer, IDS))
    numbered, model = copy.deepcopy(plain), copy.deepcopy(plain)
    stage = {"stage": ctx.params.stage, "stage3_param_persistence_threshold": 0}
    engine = regression.engine(
        ctx,
        regression.sgd(0.001),
        model,
        train_micro_batch_size_per_gpu=8,
        zero_allow_untested_optimizer=True,
        zero_optimization=stage,
    )
    copies = plain.to(ctx.device), numbered.to(ctx.device)
    for layer, other in zip(numbered, engine.module, strict=True):
        layer.id = other.id
    optimizers = [regression.sgd(0.001)(each.parameters()) for each in copies]
    for step in api.each(ctx.params.steps):
        rows = torch.randn(8, 4).to(ctx.device)
        losses = [each(rows).square().mean() for each in (engine, *copies)]
        engine.backward(losses[0])
        engine.step()
        for loss, optimizer in zip(losses[1:], optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        names = ("loss", "plain", "numbered")
        ctx.record("step", step, **dict(zip(names, map(float, losses), strict=True)))
