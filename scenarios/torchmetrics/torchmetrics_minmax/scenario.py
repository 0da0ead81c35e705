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
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import continued
from scenarios.common.line_edits import followed, setting


@dataclass
class Params(api.Knobs):
    done: int = api.knob(3, least=2, unit="epochs", about="before the interruption")
    more: int = api.knob(3, least=1, unit="epochs", about="after it")
    saved: str = api.knob(
        "state_dict", choices=("state_dict", "pickle"), about="how the module is saved"
    )


def buffers(function: object) -> api.Edits:
    """The two values become buffers of the module, which are in its state_dict."""
    code = 'for name in ("min_val", "max_val"): self.register_buffer(name, self.__dict__.pop(name))'
    yield from followed(setting(function, "max_val"), code)


REMEDY = api.Defect(
    upstream="torchmetrics",
    file="torchmetrics/wrappers/minmax.py",
    scope="MinMaxMetric.__init__",
    edit=buffers,
    about="our remedy, with the effect of upstream's pull request 3389: both values are saved",
)

SCENARIO = api.Scenario(
    report=(
        "`MinMaxMetric` state not saved in the checkpoint",
        "https://github.com/Lightning-AI/torchmetrics/issues/3323",
    ),
    fix="https://github.com/Lightning-AI/torchmetrics/pull/3389 is in no release as of 1.9.0",
    symptom="min_val and max_val are lost when a checkpoint is saved and loaded",
    trigger="a MinMaxMetric that is saved and loaded by its state_dict",
    remedy="save metric.min_val and metric.max_val beside the state_dict, and set them after the "
    "load",
    pins={"torchmetrics": "1.9.0"},
    absent=(
        api.Absent(
            "torchmetrics<0.7",
            "MinMaxMetric came with 0.7.0",
            "https://github.com/Lightning-AI/torchmetrics/releases/tag/v0.7.0",
        ),
    ),
    harm="wrong metric",
    visibility="silent",
    settings={"code": api.by_code("a MinMaxMetric is resumed from its state_dict")},
    files=("torchmetrics/wrappers/minmax.py",),
    releases="torchmetrics>=0.7",
    ranks=1,
    launches=continued.LAUNCHES,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.8.2", about="0.8.2, before the bug came"),
        "control": api.control(
            "1.9.0, the module is pickled as a whole", params={"saved": "pickle"}
        ),
        "remedy": api.expect_clean(about="1.9.0 with our remedy", defects=(REMEDY,)),
    },
)


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
