"""After a resume, GradualWarmupScheduler's schedule no longer changes the learning rate.

This affects users of warmup-scheduler who resume a training. Its class joins a warmup and a later
schedule, such as a cosine. After a resume the rate stays as it was saved, until the end of the
training: it never decays. The joined scheduler itself counts on and reports the right rates, so a
log of ``after_scheduler.get_last_lr()`` shows nothing.

Root cause: ``state_dict`` contains the joined scheduler as an object, and this one its optimizer.
``load_state_dict`` puts the loaded object in place, with a copy of the old optimizer. From then on
the schedule changes the rate of this copy, which nobody steps.

The last release is of 2021. The fixed variant is our remedy, which the report proposes as well: the
joined scheduler gets the optimizer of the warmup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued

WARMUP, GAMMA = 3, 0.5


def after_scheduler_attached(function: Any) -> api.Edits:
    """At the start of a step, the joined scheduler gets the optimizer."""
    import libcst as cst

    first = function.body.body[0]
    code = "if self.after_scheduler: self.after_scheduler.optimizer = self.optimizer"
    yield first, cst.FlattenSentinel([cst.parse_statement(code), first])


def check_params(params: Any) -> None:
    """The documented symptom is that of a resume after the warmup."""
    if params.after and params.done <= WARMUP:
        raise ValueError(f"done must be above the {WARMUP} epochs of the warmup")


def static(steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records) -> bool:
    """All epochs after the resume are trained at the rate of the first one, while the joined
    scheduler reports the right rates."""
    expected = whole[records.params.done :]
    return all(
        api.near(step["rate"], expected[0]["rate"], share=1e-6)
        and api.near(step["reported"], other["reported"], share=1e-6)
        for step, other in zip(steps, expected, strict=True)
    )


oracle = continued.Continued(
    static,
    facts=lambda at: {"rate": api.SIZE, "reported": api.SIZE},
    fact="rate",
    noun="learning rate",
    clock="epoch",
    checks={"reported": "the learning rate that after_scheduler reports"},
)


def run(ctx: api.Context) -> None:
    """Move a weight by its rate in each epoch and save, and go on; or load into new objects."""
    import torch
    from torch.optim.lr_scheduler import ExponentialLR
    from warmup_scheduler import GradualWarmupScheduler

    p, file = ctx.params, ctx.folder / "checkpoint.pt"
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64, device=ctx.device))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=p.lr)
    decay = ExponentialLR(optimizer, GAMMA) if p.after else None
    scheduler: Any = GradualWarmupScheduler(optimizer, 1.0, WARMUP, after_scheduler=decay)
    states = {"optimizer": optimizer, "scheduler": scheduler}
    if ctx.launch == continued.RESUMED:
        # The state has an object of torch, which only a load without weights_only can make.
        saved = torch.load(file, map_location=ctx.device, weights_only=False)
        for name, state in saved.items():
            states[name].load_state_dict(state)
    for step in continued.steps(ctx):
        before = weight.detach().clone()
        optimizer.step()
        rate = float((before - weight.detach()).mean())
        reported = scheduler.after_scheduler.get_last_lr()[0] if p.after else rate
        ctx.record("step", step, rate=rate, reported=reported)
        scheduler.step()
        if ctx.launch == continued.WHOLE and step == p.done:
            torch.save({name: part.state_dict() for name, part in states.items()}, file)
