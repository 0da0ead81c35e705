"""Compiled with a memory budget below 1, the backward draws dropout masks of its own.

``torch._functorch.config.activation_memory_budget`` says which part of the activations
``torch.compile`` may keep for the backward; it recomputes the others. Below 1 it may choose to
recompute dropout, or another operation that draws random numbers. The recomputation draws anew, so
the backward uses a mask that the forward never had. The loss is right. The gradients of most
weights are wrong, and that of the last bias is right. It is often the largest, so that little is
seen in the norm of the whole gradient.

Root cause: where min-cut bans a node from being recomputed, the search for a partition that fits
the budget may lift the ban, also from random operations. The state of the random generator is kept
for the recomputations of ``torch.utils.checkpoint`` alone. A budget of 0 keeps the inputs only, and
asks for no ban.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

WIDTH = 32
FAR = 0.01
"""Gradients that are further from each other, in parts of their norm, do not differ by rounding."""


def save_random(function: Any) -> api.Edits:
    """What is random must be saved, as what a user marked so."""
    import libcst as cst
    import libcst.matchers as m

    must_save = m.Comparison(
        comparisons=[m.ComparisonTarget(m.Equal(), m.Attribute(attr=m.Name("MUST_SAVE")))]
    )
    for condition in m.findall(function, m.CompIf(must_save)):
        random = cst.parse_expression("get_default_op_list().is_random(i)")
        either = cst.BooleanOperation(
            left=cst.ensure_type(condition, cst.CompIf).test, operator=cst.Or(), right=random
        )
        yield condition, condition.with_changes(test=either)


def plan(at: api.Position) -> api.Plan:
    """Of each step: the loss, eagerly and compiled with the same masks; and of each weight, in the
    order of the model, how far the compiled gradient is from the eager one, as a part of it."""
    facts = {
        "eager": api.NUMBER,
        "compiled": api.NUMBER,
        "away": api.many(api.SIZE, 2 * at.params.layers + 2),
    }
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a model with its eager gradients, and compare those of the same model when compiled.

    The backend ``aot_eager`` divides the graph as the default one does, and builds no code. It
    draws the masks of the eager forward, so both losses are the same.
    """
    import torch
    import torch._functorch.config as functorch

    p, device = ctx.params, ctx.device
    functorch.activation_memory_budget = p.budget
    torch.manual_seed(ctx.seed)
    blocks = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(p.layers)]
    layers = [layer for block in blocks for layer in (*block, torch.nn.Dropout(p.dropout))]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).to(device)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    drawn = torch.Generator().manual_seed(ctx.seed + 1)
    for step in api.each(p.steps):
        rows = torch.randn(p.rows, WIDTH, generator=drawn).to(device)
        ends = []
        for function in (compiled, model):  # the optimizer steps with the eager gradients
            torch.manual_seed(ctx.seed + step)
            optimizer.zero_grad()
            loss = (function(rows) - 1).square().mean()
            loss.backward()
            ends.append((loss.item(), [_gradient(weight) for weight in model.parameters()]))
        (loss_compiled, gradients), (loss_eager, eager) = ends
        ctx.record(
            "step",
            step,
            eager=loss_eager,
            compiled=loss_compiled,
            away=[float((a - b).norm() / b.norm()) for a, b in zip(gradients, eager, strict=True)],
        )
        optimizer.step()


def _gradient(weight: Any) -> Any:
    return weight.grad.clone()


def detect(records: api.Records) -> api.Finding | None:
    """The gradient of the first weight, which is behind all masks in the backward, is not the eager
    one. The losses are the same, and so is the gradient of the last bias, which needs no mask."""
    steps = records.of("step")
    wrong_steps = [step for step in steps if max(step["away"]) > FAR]
    if not wrong_steps:
        return None
    step = wrong_steps[0]
    return api.Finding(
        f"the gradient of the first weight is {step['away'][0]:.0%} of its size away from the "
        f"eager one, with the same loss, in {len(wrong_steps)} of {len(steps)} steps",
        step=step["step"],
        ranks=records.ranks,
        magnitude=step["away"][0],
        unit="of the first weight's gradient",
        documented=all(
            s["away"][0] > FAR
            and s["away"][-1] < FAR
            and api.near(s["compiled"], s["eager"], share=1e-5)
            for s in steps
        ),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The compiled forward is right."""
    steps = records.of("step")
    return {
        "the compiled loss is not the eager one": any(
            not api.near(s["compiled"], s["eager"], share=1e-5) for s in steps
        )
    }


picture = api.lines(
    "How far the compiled gradient of the first weight is from the eager one",
    "without the bug the backward uses the masks of the forward, and it is the same",
    lambda step: float(step["away"][0]),
    y="of its size",
)
