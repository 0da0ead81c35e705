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

from harness.bugs import api
from scenarios.common import continued

START, ALPHA = 1.0, 0.5
"""The initial weight; the share of the fast weight in a pull."""


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
