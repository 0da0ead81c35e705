"""The moving average of a bf16 model stays the untrained model.

This affected users of ``ema_pytorch.EMA`` whose model has weights in bf16 or fp64. The average is
what they evaluate, save and sample from. It keeps the weights of the beginning for ever, whatever
the training does: the loss of the model falls, and that of the average does not. In a model of
which only some layers are bf16, those keep their initial weights, and the others are averaged, so
the average is a mixture that was never trained. No error is raised.

Root cause: the constructor lists the parameters and buffers to average by their dtype, and knew
fp32 and fp16 alone. All later copies and averages go through this list. Since 0.4.3 it takes all
floating-point and complex ones. The class for averages after the training had the same list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.bugs import api

BEGIN = 1.0
"""The initial weight; each step adds 1."""
CLOSE = 2e-2
"""How far (as a fraction) an average may be from that in fp32: bf16 rounds each update."""


@dataclass(frozen=True)
class Step(api.Entry):
    trained: api.Number
    average: api.Number
    """The weight of the average."""
    fp32: api.Number
    """The weight of the average of the same weights in fp32."""


def plan(at: api.Position) -> api.Plan:
    """The trained weight after each step, its average, and the average in fp32."""
    return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Add 1 to a weight in each step, and average it; the same in fp32."""
    import torch
    from ema_pytorch import EMA

    p = ctx.params
    models: list[Any] = []
    for dtype in (getattr(torch, p.dtype), torch.float32):
        model = torch.nn.Linear(1, 1, bias=False, device=ctx.device, dtype=dtype)
        torch.nn.init.constant_(model.weight, BEGIN)
        models.append(model)
    averages = [EMA(m, beta=p.beta, update_after_step=p.after, update_every=1) for m in models]
    for step in api.each(p.steps):
        for model, average in zip(models, averages, strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer.zero_grad()
            (-model.weight).sum().backward()
            optimizer.step()
            average.update()
        weights = [average.ema_model.weight.item() for average in averages]
        trained = models[0].weight.item()
        ctx.record("step", step, trained=trained, average=weights[0], fp32=weights[1])


def detect(records: api.Records) -> api.Finding | None:
    """The average is the initial weight after each step."""
    steps = records.typed(Step)
    wrong_steps = [step for step in steps if not api.near(step.average, step.fp32, share=CLOSE)]
    if not wrong_steps:
        return None
    end = wrong_steps[-1]
    return api.Finding(
        f"after step {end.step} the average is {end.average:.4g}, and {end.fp32:.4g} in fp32; "
        f"the trained weight is {end.trained:.4g}, and was {BEGIN:g} at the beginning",
        step=wrong_steps[0].step,
        ranks=records.ranks,
        magnitude=max(abs(step.average - step.fp32) / step.fp32 for step in wrong_steps),
        unit="of the right average",
        documented=all(step.average == BEGIN for step in steps),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The training itself is right."""
    trained = [step.trained for step in records.typed(Step)]
    return {"a step leaves the weight unchanged": len(set(trained)) < len(trained)}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """The average after each step."""
    points = [
        (variant, float(step.step), step.average)
        for variant, records in trials.items()
        for step in records.typed(Step)
    ]
    yield api.Lines(
        "The average of the weight", "with the bug it stays the initial weight", points, y="weight"
    )
