"""MinMaxMetric is not in a checkpoint: a resumed run forgets the best value so far.

``MinMaxMetric`` keeps the lowest and the highest value of a metric over all epochs. A module that
contains one saves nothing of it: its state_dict is empty, and loading reports no missing key. After
a resume the minimum and the maximum are those of the epochs since. Here a maximum of 0.9 becomes
0.5. This affects users who log the best accuracy so far, or choose a checkpoint by it: after a
resume a worse model counts as the best one.

Root cause: ``__init__`` sets ``min_val`` and ``max_val`` as plain attributes, neither as buffers
nor with ``add_state(..., persistent=True)``. Up to 0.8.2 they were buffers, and were saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued
from scenarios.common.line_edits import followed, setting


def buffers(function: object) -> api.Edits:
    """The two values become buffers of the module, which are in its state_dict."""
    code = 'for name in ("min_val", "max_val"): self.register_buffer(name, self.__dict__.pop(name))'
    yield from followed(setting(function, "max_val"), code)


def run(ctx: api.Context) -> None:
    """Log the metric of each epoch, and save; or load, and go on."""
    import torch
    from torchmetrics import MeanMetric, MinMaxMetric

    p, file = ctx.params, ctx.folder / "module.pt"
    # The extremes must come before the interruption: otherwise the bug has no effect.
    values = [0.9, 0.1, *(0.3 + 0.4 * torch.rand(p.done + p.more - 2)).tolist()]
    module: Any = torch.nn.ModuleDict({"best": MinMaxMetric(MeanMetric())}).to(ctx.device)
    start = 0
    if ctx.launch == "resumed":
        saved = torch.load(file, map_location=ctx.device, weights_only=False)
        start = p.done
        if p.saved == "pickle":
            module = saved
        else:
            module.load_state_dict(saved)
    for step in range(start + 1, p.done + p.more + 1):
        module["best"].update(torch.tensor(values[step - 1], device=ctx.device))
        facts = {name: float(value) for name, value in module["best"].compute().items()}
        ctx.record("step", step, **facts)
        module["best"].reset()  # of the mean: the extremes are of all epochs
        if ctx.launch == "whole" and step == p.done:
            torch.save(module if p.saved == "pickle" else module.state_dict(), file)


def since_resume(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """After the resume the minimum and the maximum are those of the epochs since."""
    raw = [step["raw"] for step in whole[records.params.done :]]
    return all(
        (step["raw"], step["min"], step["max"]) == (raw[n], min(raw[: n + 1]), max(raw[: n + 1]))
        for n, step in enumerate(steps)
    )


oracle = continued.Continued(
    since_resume,
    facts=lambda at: dict.fromkeys(("raw", "min", "max"), api.NUMBER),
    fact="max",
    noun="highest value so far",
    clock="epoch",
    unit="of the metric",
    checks={"raw": "the metric of an epoch"},
)


def exercised(records: api.Records) -> api.Exercise:
    """The state_dict was loaded, and both extremes came before the interruption."""
    p = records.params
    raw = [step["raw"] for step in continued.of(records, continued.WHOLE, 0)]
    early = max(raw) in raw[: p.done] and min(raw) in raw[: p.done]
    return api.Exercise.needs(early, "an extreme came after the resume") & api.Exercise.of(
        p.saved == "state_dict", f"the {p.saved} of {p.done} epochs was loaded"
    )
