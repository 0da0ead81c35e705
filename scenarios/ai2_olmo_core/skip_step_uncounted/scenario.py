"""OLMo-core's SkipStepAdamW corrects the bias of each step as if it were the first.

This affected all trainings with OLMo-core's ``SkipStepAdamW``, the optimizer that leaves out steps
with an outlying loss. After some steps its updates are those of AdamW times
sqrt(1 - beta2) / (1 - beta1): 2.24 times as long with betas of 0.9 and 0.95, as is usual for
language models, and 0.32 times with the default betas. So a run trains at another learning rate
than the chosen one, and its warmup has another form. The first step is right, and the loss falls. A
rate that was tuned with the bug is too small without it: upstream kept an option that brings it
back, ``step_increment_bugfix=False``.

Root cause: the update divides by 1 - beta ** (step + 1), but ``step`` in the state of a parameter
was never increased.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from harness.detectors import arithmetic

CLOSE = 1e-3
"""How far (as a fraction) an update may be from another one."""


@dataclass(frozen=True)
class Step(api.Entry):
    ratio: api.Number
    """How many times torch's update is in the one that was applied."""
    cosine: api.Number
    loss: api.Number


def correction(params: Any, step: int) -> float:
    """The update of this step is as long as with the corrections of the first, times this."""
    return math.sqrt(1 - params.beta2**step) / (1 - params.beta1**step)


def plan(at: api.Position) -> api.Plan:
    """Each update, beside the one that torch's AdamW makes of the same weights and gradients."""
    return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a linear map with the optimizer, and let torch's AdamW take each step as well."""
    import torch
    from olmo_core.optim import SkipStepAdamW

    from scenarios.common import linear

    p = ctx.params
    torch.manual_seed(ctx.seed)
    model = linear.model().to(ctx.device)
    twin = torch.nn.Parameter(model.weight.detach().clone())
    options: Any = {"lr": p.lr, "betas": (p.beta1, p.beta2), "weight_decay": 0.0}
    optimizer = SkipStepAdamW([model.weight], **options)
    torchs = torch.optim.AdamW([twin], **options)
    batches = linear.batches(ctx, model, 8, distance=2.0, noise=0.1)
    for step in api.each(p.steps):
        rows, labels = next(batches)
        loss = linear.loss(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        before = model.weight.detach().clone()
        twin.data.copy_(before)
        gradient: Any = model.weight.grad
        twin.grad = gradient.clone()
        optimizer.latest_loss = loss.detach()
        optimizer.step()
        torchs.step()
        projection = arithmetic.projection(
            (model.weight.detach() - before).double().flatten(),
            (twin.detach() - before).double().flatten(),
        )
        ctx.record(
            "step",
            step,
            ratio=projection.ratio,
            cosine=projection.cosine,
            loss=float(loss.detach()),
        )


def detect(records: api.Records) -> api.Finding | None:
    """Each update has the bias corrections of the first step."""
    p, steps = records.params, records.typed(Step)
    wrong_steps = [
        s for s in steps if not api.near(s.ratio, 1, share=CLOSE) or s.cosine < 1 - CLOSE
    ]
    if not wrong_steps:
        return None
    newest = wrong_steps[-1]
    documented = all(
        s.cosine >= 1 - CLOSE
        and api.near(s.ratio, correction(p, 1) / correction(p, s.step), share=CLOSE)
        for s in steps
    )
    lines = [f"step {newest.step}: the update is {newest.ratio:.4g} times that of torch's AdamW"]
    if documented:
        lines.append("exactly that follows if each step has the corrections of the first")
    return api.Finding(
        "\n".join(lines),
        step=wrong_steps[0].step,
        ranks=records.ranks,
        magnitude=max(abs(s.ratio - 1) for s in wrong_steps),
        unit="of the right update",
        documented=documented,
    )


def exercised(records: api.Records) -> api.Exercise:
    """Steps after the first needed another bias correction than the first."""
    p = records.params
    text = f"{p.steps} steps with betas of {p.beta1:g} and {p.beta2:g}"
    return api.Exercise.of(max(p.beta1, p.beta2) > 0, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The first update is right, and the loss falls."""
    steps = records.typed(Step)
    return {
        "the first update is not torch's": not api.near(steps[0].ratio, 1, share=CLOSE),
        "the loss at the end is not below that at the start": steps[-1].loss >= steps[0].loss,
    }


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """How many times torch's update each step is."""
    points = [
        (variant, float(step.step), step.ratio)
        for variant, records in trials.items()
        for step in records.typed(Step)
    ]
    yield api.Lines(
        "Each update beside that of torch's AdamW",
        "with the bug the ratio moves from 1 to sqrt(1 - beta2) / (1 - beta1)",
        points,
        y="times its length",
    )
