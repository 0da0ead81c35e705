"""A checkpoint of Lookahead has no slow weights: after a resume, training is pulled to its start.

``Lookahead`` of pytorch_optimizer keeps a second, slow copy of the weights. Every ``k`` steps it
puts the weights between the two, and copies the result into the slow ones. A new process usually
makes model and optimizer, and then loads both. The slow weights are those with which the model was
made, so the first pull after the resume throws the weights halfway back to the initial ones. The
optimizer's state loads without a warning, and the steps before that pull are right.

Root cause: ``state_dict`` returns the state of the inner optimizer only, and ``load_state_dict``
restores only that. 3.3.1 saves the slow weights, but by the tensor objects of the parameters, which
a new process does not have: a resumed run raises a KeyError at its first pull. Since 3.11.0 they
are saved by the places of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import continued

START, ALPHA = 1.0, 0.5
"""The initial weight; the share of the fast weight in a pull."""


@dataclass
class Params(api.Knobs):
    done: int = api.knob(10, least=1, unit="steps", about="before the interruption")
    more: int = api.knob(12, least=5, unit="steps", about="after it")
    k: int = api.knob(5, least=1, most=5, unit="steps", about="from one pull to the next")
    lr: float = api.knob(0.1, above=0, about="of SGD")
    wrapped: str = api.knob(
        "first",
        choices=("first", "late"),
        about="is when Lookahead is made: before or after the model is loaded",
    )


SCENARIO = api.Scenario(
    report=(
        "Save and load the Lookahead optimizer's state",
        "https://github.com/kozistr/pytorch_optimizer/pull/310",
    ),
    fix="https://github.com/kozistr/pytorch_optimizer/pull/310 saves the slow weights; a new "
    "process can load them since 3.11.0",
    symptom="the state of Lookahead is neither saved nor loaded",
    trigger="a Lookahead that is resumed after its first pull",
    remedy="save right after a pull, and make Lookahead after the model's weights are loaded",
    pins={"pytorch-optimizer": "3.3.0"},
    absent=(
        api.Absent(
            "pytorch-optimizer>=3.3.1,<3.11",
            "the slow weights are saved, but a resumed run raises an error at its first pull, as "
            "recorded runs show",
            "https://github.com/kozistr/pytorch_optimizer/pull/310",
        ),
    ),
    releases="pytorch-optimizer>=2.6",  # the first whose slow weights exist from the start
    harm="wrong resume",
    visibility="silent",
    settings={"code": api.by_code("a training with Lookahead is resumed")},
    files=("pytorch_optimizer/optimizer/lookahead.py",),
    ranks=1,
    launches=continued.LAUNCHES,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("3.11.0"),
        "control": api.control("3.3.0, resumed before the first pull", params={"done": 3}),
        "late": api.expect_clean(
            about="3.3.0, saved right after a pull; Lookahead is made after the model is loaded",
            params={"wrapped": "late"},
        ),
    },
)


def pulled_to_start(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """After the resume all steps are right up to the first pull, and that one goes to the initial
    weight; the later ones follow from it."""
    p = records.params
    fast, slow = whole[p.done - 1]["weight"], START
    for step in steps:
        fast -= p.lr  # the gradient is 1
        if step["step"] % p.k == 0:
            fast = slow = ALPHA * fast + (1 - ALPHA) * slow
        if not api.near(step["weight"], fast, within=1e-5):
            return False
    return True


oracle = continued.Continued(
    pulled_to_start,
    facts=lambda at: {"weight": api.NUMBER, "rate": api.SIZE},
    fact="weight",
    noun="weight",
    share=1e-5,
    checks={"rate": "the learning rate"},
)


def run(ctx: api.Context) -> None:
    """Record the weight after each step, and save; or load, and go on."""
    import torch
    from pytorch_optimizer import Lookahead

    p, file = ctx.params, ctx.folder / "checkpoint.pt"
    model = torch.nn.Linear(1, 1, bias=False, device=ctx.device)
    torch.nn.init.constant_(model.weight, START)
    resumed = ctx.launch == continued.RESUMED
    saved = torch.load(file, map_location=ctx.device, weights_only=False) if resumed else {}
    if p.wrapped == "late" and resumed:
        model.load_state_dict(saved["model"])
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=p.lr), k=p.k, alpha=ALPHA)
    if resumed:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in continued.steps(ctx):
        optimizer.zero_grad()
        model(torch.ones(1, 1, device=ctx.device)).sum().backward()
        optimizer.step()
        rate = float(optimizer.param_groups[0]["lr"])
        ctx.record("step", step, weight=model.weight.item(), rate=rate)
        if not resumed and step == p.done:
            states = {"model": model, "optimizer": optimizer}
            torch.save({name: one.state_dict() for name, one in states.items()}, file)


def exercised(records: api.Records) -> api.Exercise:
    """The run was stopped after the first pull, and went on to another one."""
    p = records.params
    text = f"stopped after {p.done} steps, with a pull every {p.k}"
    return api.Exercise.of(p.k <= p.done, text)
