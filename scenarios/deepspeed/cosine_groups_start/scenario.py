"""WarmupCosineLR warms up the first parameter group alone: the others begin at full rate.

This affects users of DeepSpeed who have several parameter groups, such as one without weight decay,
and WarmupCosineLR. The first step should have a rate of 0. All groups but the first take it at the
full rate of the optimizer, before Adam has any average of the gradients: just what a warmup is to
prevent. From the second step on all rates are right, and no log has the rates of the first.

Root cause: before its first step the schedule returns a list with one rate. It is applied to the
groups with ``zip``, which ends after the first. The fix returns a rate for each group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """How far each step moved the two groups, whose gradients are 1."""
    return {"step": api.Kind({"moved": api.many(api.SIZE, 2)}, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a weight and a bias, in two groups or in one, under WarmupCosineLR."""
    import torch

    from scenarios.deepspeed import _regression as regression

    p = ctx.params

    def sgd(parts: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        groups = [[part] for part in parts] if p.groups == 2 else [list(parts)]
        return torch.optim.SGD([{"params": group} for group in groups], lr=p.lr)

    ratios = {"total_num_steps": 20, "warmup_num_steps": 4, "warmup_type": "linear"}
    model: Any = torch.nn.Linear(1, 1)
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            sgd,
            model,
            train_micro_batch_size_per_gpu=1,
            zero_optimization={"stage": 0},
            scheduler={"type": "WarmupCosineLR", "params": ratios},
        )
    for step in api.each(p.steps):
        before = [float(part) for part in engine.module.parameters()]
        engine.backward(engine(torch.ones(1, 1, device=ctx.device)).sum())
        engine.step()
        after = [float(part) for part in engine.module.parameters()]
        ctx.record("step", step, moved=[a - b for a, b in zip(before, after, strict=True)])


def detect(records: api.Records) -> api.Finding | None:
    """The second group takes the first step at the optimizer's full rate, and the first group does
    not move. Both have the same rate in all other steps."""
    steps, lr = records.of("step"), records.params.lr
    faults = [one for one in steps if not api.near(*one["moved"], within=1e-6)]
    if not faults:
        return None
    first, second = faults[0]["moved"]
    at_start = {one["step"] for one in faults} == {1} and first == 0
    return api.Finding(
        f"step {faults[0]['step']}: the rate of the first group is {first:.4g}, of the second "
        f"{second:.4g}",
        step=faults[0]["step"],
        magnitude=max(abs(one["moved"][1] - one["moved"][0]) for one in faults),
        unit="of rate between groups that have the same",
        documented=at_start and all(api.near(one["moved"][1], lr, within=1e-6) for one in faults),
    )


def exercised(records: api.Records) -> api.Exercise:
    """There were two groups, and the schedule began below the optimizer's rate."""
    starts = [one["moved"][0] for one in records.of("step") if one["step"] == 1]
    low = all(start < records.params.lr for start in starts)
    text = f"groups: {records.params.groups}; the first began at {starts[0]:.4g}"
    return api.Exercise.of(records.params.groups == 2 and low, text)


picture = api.lines(
    "The learning rate of the second group",
    "with the bug, its first step has the full rate",
    lambda record: record["moved"][1],
    "step",
    y="learning rate",
    stairs=True,
)
