"""A resumed ConcatScheduler of ignite runs its current schedule for its whole duration once more.

``ConcatScheduler`` runs one schedule for a number of steps and then the next one; it also makes
``create_lr_scheduler_with_warmup``. If a run stops within a schedule, and a new scheduler loads the
state, the current schedule lasts its full duration again, counted from the resume. All later
schedules start too late: the rates are wrong for the rest of the training. No error is raised.

Root cause: ``load_state_dict`` restores the number of steps that are left, and then calls
``_setup_scheduler``, which sets it to the duration of the schedule. The fix restores it after
that call.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.bugs import api
from scenarios.common import continued


def duration_again(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """The first schedule lasts its full duration after the resume; then the second one begins."""
    p = records.params
    rates = [step["rate"] for step in whole]
    slope = rates[1] - rates[0]  # the first schedule is linear
    longer = [rates[0] + slope * (p.done + n) for n in range(p.first)]
    expected = [*longer, *rates[p.first :]]
    pairs = zip(steps, expected, strict=False)
    return all(api.near(step["rate"], rate, within=1e-6) for step, rate in pairs)


oracle = continued.Continued(
    duration_again,
    facts=lambda at: {"rate": api.SIZE, "count": api.COUNT},
    fact="rate",
    noun="learning rate",
    checks={"count": "the number of steps that the current schedule knows of"},
)


def run(ctx: api.Context) -> None:
    """Record the rate of each step, and save; or load, and go on."""
    import torch
    from ignite.handlers.param_scheduler import (
        ConcatScheduler,
        CosineAnnealingScheduler,
        LinearCyclicalScheduler,
    )

    p, file = ctx.params, ctx.folder / "checkpoint.pt"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=ctx.device))], lr=0.1)
    cycle = 10 * (p.done + p.more + p.first)  # no schedule turns within the run
    scheduler = ConcatScheduler(
        [
            LinearCyclicalScheduler(optimizer, "lr", 1.0, 0.0, cycle),
            CosineAnnealingScheduler(optimizer, "lr", 0.1, 1.0, cycle),
        ],
        [p.first],
    )
    if ctx.launch == continued.RESUMED:
        saved = torch.load(file, map_location=ctx.device)
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    for step in continued.steps(ctx):
        scheduler(None)  # as an engine calls it at the start of each iteration
        optimizer.step()
        count = scheduler.schedulers[0].event_index + scheduler.schedulers[1].event_index
        ctx.record("step", step, rate=float(optimizer.param_groups[0]["lr"]), count=count)
        if ctx.launch == continued.WHOLE and step == p.done:
            states = {"optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: one.state_dict() for name, one in states.items()}, file)


def exercised(records: api.Records) -> api.Exercise:
    """The run stopped within the first schedule, and went on beyond its end."""
    p = records.params
    text = f"stopped after {p.done} steps, of which the first schedule has {p.first}"
    within = p.done < p.first < p.done + p.more
    return api.Exercise.of(within, text)
