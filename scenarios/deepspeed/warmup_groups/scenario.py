"""WarmupLR without warmup_max_lr warms all parameter groups up to the rate of the first group.

This affects users of DeepSpeed who give their parameter groups learning rates of their own, such as
a small one for a pretrained body and a large one for a new head, and let WarmupLR end at the
optimizer's rates. Every group then trains with the rate of the first one, during the warmup and
behind it. The other rates of the configuration are without effect, and no message says so.

Root cause: if ``warmup_max_lr`` is not given, ``WarmupLR`` collects the rates of all groups, but
takes the first of the list. One number counts for all groups. The fix passes on the list. Up to
0.17.1 the rate was 0.001 for all groups in this case, as documented.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.bugs import api
from scenarios.common import plain_loss, usual_checks
from scenarios.deepspeed import _schedule as schedule

_GROUPS = api.many(api.SIZE, 2)


def plan(at: api.Position) -> api.Plan:
    """The rates of each step, and how far it moved each group, as a multiple of its gradient."""
    steps = api.each(at.params.steps)
    step = {"loss": api.NUMBER, "reference_loss": api.NUMBER, "moved": _GROUPS}
    return {"rate": api.Kind({"rates": _GROUPS}, steps), "step": api.Kind(step, steps)}


def run(ctx: api.Context) -> None:
    """Fit a linear map whose weight and bias are two groups of SGD; record each step's rates."""
    import torch

    from scenarios.common import linear, plain_torch
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    rates = p.first, p.second
    highest = {"warmup_max_lr": list(rates)} if p.given else {}
    warmup = {"warmup_num_steps": p.warmup, "warmup_type": "linear", **highest}
    with ctx.phase("init"):
        engine = regression.engine(
            ctx,
            lambda parts: torch.optim.SGD(
                {"params": part, "lr": lr} for part, lr in zip(parts, rates, strict=True)
            ),
            train_micro_batch_size_per_gpu=p.batch,
            zero_optimization={"stage": 0},
            scheduler={"type": "WarmupLR", "params": warmup},
        )
        schedule.watch(ctx.record, engine.optimizer)
    data = linear.batches(ctx, engine.module, ctx.world_size * p.batch, 20.0, 0.1)
    for step, rows in zip(api.each(p.steps), data, strict=False):
        update = plain_torch.Update(
            plain_torch.loss_of(engine.module, linear.loss), engine.module, rows
        )
        loss = regression.step(ctx, engine, rows)
        after, (gradient,) = plain_torch.copied(engine.module), update.plain.micro
        distances = [
            float((update.before[name] - after[name]).norm() / gradient[name].norm())
            for name in ("weight", "bias")
        ]
        ctx.record("step", step, loss=loss, reference_loss=update.plain.loss, moved=distances)


def detect(records: api.Records) -> api.Finding | None:
    """Each group has the rate that the warmup to the first group's rate gives; so the others have
    not theirs. Each step moved each group by that rate, and computed plain torch's loss."""
    faults = [*_unmoved(records), *plain_loss.loss_wrong(records)]
    if faults:
        return api.Finding("\n".join(faults[:3]), documented=False)
    deviations = [
        schedule.Deviation(
            rate["rank"], rate["step"], group, used_rate, _right_rate(records, rate, group)
        )
        for rate in records.of("rate")
        for group, used_rate in enumerate(rate["rates"])
    ]
    wrong_rates = [
        deviation for deviation in deviations if not _near(deviation.rate, deviation.wanted)
    ]
    if not wrong_rates:
        return None
    rates_of_first = {
        deviation.step: deviation.wanted for deviation in deviations if deviation.group == 0
    }
    return schedule.finding(
        wrong_rates,
        documented=all(
            _near(deviation.rate, rates_of_first[deviation.step]) for deviation in deviations
        ),
    )


def _near(rate: float, expected: float) -> bool:
    return api.near(rate, expected, share=schedule.TOLERANCE)


def _right_rate(records: api.Records, rate: api.Record, group: int) -> float:
    """A group's right rate: the optimizer's first two steps are at the start of the warmup."""
    p = records.params
    return float((p.first, p.second)[group] * min(max(rate["step"] - 2, 0) / p.warmup, 1.0))


def _unmoved(records: api.Records) -> Iterator[str]:
    """The steps that moved a group by another rate than the optimizer has."""
    for rate, step in zip(records.of("rate"), records.of("step"), strict=True):
        pairs = zip(step["moved"], rate["rates"], strict=True)
        if not all(api.near(moved, used, share=1e-3, within=1e-6) for moved, used in pairs):
            yield f"step {step['step']} moved the groups by {step['moved']}, not {rate['rates']}"


def exercised(records: api.Records) -> api.Exercise:
    """The groups had different rates, and the schedule was given none."""
    p = records.params
    rates = f"the groups have the rates {p.first:g} and {p.second:g}"
    setting = "warmup_max_lr was " + ("given" if p.given else "not given")
    return api.Exercise.of(p.first != p.second, rates) & api.Exercise.of(not p.given, setting)


insufficient_checks = api.together(usual_checks.loss_ends_higher, plain_loss.loss_unlike_reference)
picture = api.lines(
    "The learning rate of the second group",
    "with the bug, the second group has the rate of the first",
    lambda record: record["rates"][1],
    "rate",
    y="learning rate",
    stairs=True,
)
