"""After a resume, does each step have the weight decay of the checkpoint's schedule?

NeMo Automodel's scheduler was made from Megatron-LM's: both anneal the learning rate and the weight
decay. A resumed run may be configured for more steps. By default the checkpoint decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued

RATE, START, END = 0.1, 0.01, 0.5


def configured(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """The first step after the resume has the weight decay of the new configuration, and all others
    that of the checkpoint. The learning rate is always that of the checkpoint."""
    p, expected = records.params, whole[records.params.done :]
    stale = START + (END - START) * p.done / (2 * (p.done + p.more))
    decays = [stale, *(step["decay"] for step in expected[1:])]
    return all(
        api.near(step["decay"], decay, share=1e-6)
        and api.near(step["rate"], other["rate"], share=1e-6)
        for step, other, decay in zip(steps, expected, decays, strict=True)
    )


oracle = continued.Continued(
    configured,
    facts=lambda at: {"rate": api.SIZE, "decay": api.SIZE},
    fact="decay",
    noun="weight decay",
    checks={"rate": "the learning rate"},
)
"""It needs the parameter ``longer``: whether the resumed run is configured for twice the steps."""


def train(ctx: api.Context, scheduler_of: Callable[..., Any]) -> None:
    """Step with a zero gradient, so that a weight shrinks by its decay alone; save, and go on; or
    load into new objects, and go on. ``scheduler_of`` is upstream's class."""
    import torch

    p, file = ctx.params, ctx.folder / "checkpoint.pt"
    resumes = ctx.launch == continued.RESUMED
    total = (p.done + p.more) * (2 if resumes and p.longer else 1)
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float64, device=ctx.device))
    weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD([weight], lr=RATE, weight_decay=START)
    rates = {"init_lr": RATE, "max_lr": RATE, "min_lr": RATE / 10, "lr_decay_style": "cosine"}
    decays = {"start_wd": START, "end_wd": END, "wd_incr_style": "linear"}
    lengths = {"lr_warmup_steps": 0, "lr_decay_steps": total, "wd_incr_steps": total}
    scheduler = scheduler_of(optimizer, **rates, **decays, **lengths)
    if resumes:
        saved = torch.load(file, map_location=ctx.device)
        weight.data.copy_(saved["weight"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    for step in continued.steps(ctx):
        before, rate = weight.detach().clone(), optimizer.param_groups[0]["lr"]
        optimizer.step()
        shrunk = 1 - float((weight.detach() / before).mean())
        ctx.record("step", step, rate=rate, decay=shrunk / rate)
        scheduler.step(1)
        if not resumes and step == p.done:
            states = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
            torch.save({"weight": weight.detach(), **states}, file)
