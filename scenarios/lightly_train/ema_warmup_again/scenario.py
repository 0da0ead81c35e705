"""After a resume, the moving average of lightly-train is overwritten by the current weights.

This affects users who resume a detection or segmentation training. lightly-train validates the
average, so the metrics of the validation drop after a resume. With the default warmup of 2000
steps, the first update keeps 0.05 % of the average: an interruption of the training costs all that
was averaged. No error is raised, and the loss goes on as it should.

Root cause: an update keeps ``decay * (1 - exp(-updates / warmups))`` of the average. ``updates``
was a plain integer, so it was in no checkpoint, and a resumed run counts from 0. Since the fix it
is a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.bugs import api
from scenarios.common import continued

DECAY = 0.99


def from_zero(steps: Sequence[api.Record], whole: Sequence[api.Record], _: api.Records) -> bool:
    """The updates after the resume keep as much of the average as the first updates of a
    training do."""
    pairs = zip(steps, whole, strict=False)
    return all(api.near(step["kept"], first["kept"], within=1e-4) for step, first in pairs)


oracle = continued.Continued(
    from_zero,
    facts=lambda at: {"average": api.SIZE, "kept": api.SIZE, "weight": api.SIZE},
    fact="average",
    noun="average of the weight",
    share=1e-4,
    checks={"weight": "the weight that is trained"},
)


def run(ctx: api.Context) -> None:
    """Train a weight, which grows by 1 in a step, and average it; save and go on, or resume."""
    import torch
    from lightly_train._task_models.object_detection_components.ema import ModelEMA

    p, file = ctx.params, ctx.folder / "checkpoint.pt"
    model = torch.nn.Linear(1, 1, bias=False, device=ctx.device)
    torch.nn.init.ones_(model.weight)
    average = ModelEMA(model, decay=DECAY, warmups=p.warmups)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if ctx.launch == continued.RESUMED:
        states = torch.load(file, map_location=ctx.device, weights_only=True)
        model.load_state_dict(states["model"])
        average.load_state_dict(states["average"])
    for step in continued.steps(ctx):
        optimizer.zero_grad()
        (-model.weight).sum().backward()
        optimizer.step()
        before, weight = average.model.weight.item(), model.weight.item()
        average.update(model)
        after = average.model.weight.item()
        kept = (weight - after) / (weight - before)
        ctx.record("step", step, average=after, kept=kept, weight=weight)
        if ctx.launch == continued.WHOLE and step == p.done:
            states = {"model": model.state_dict(), "average": average.state_dict()}
            torch.save(states, file)
