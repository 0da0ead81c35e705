"""Checkpointing a block that ends with RReLU multiplies its gradient by uninitialised memory.

RReLU gives each negative number a random slope, and its backward pass multiplies by these slopes.
If ``torch.utils.checkpoint`` recomputes a block whose last operation is RReLU, with
``use_reentrant=False``, the slopes of the backward pass are whatever was in the memory. The loss is
right. The gradients of the block, and of all before it, are wrong, often by many orders of
magnitude, and sometimes NaN.

Root cause: ``rrelu`` allocates the slopes without values, autograd saves this tensor, and then the
kernel fills it. The recomputation stops as soon as autograd has saved the last tensor, since it
needs nothing more. In a block that ends with RReLU that is before the kernel runs. The reentrant
checkpointing does not stop early.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

WIDTH = 8


def never_early(function: Any) -> api.Edits:
    """A recomputation goes on to its end."""
    import libcst as cst
    import libcst.matchers as m

    own = m.Assign([m.AssignTarget(m.Attribute(attr=m.Name("early_stop")))])
    for assignment in m.findall(function, own):
        yield assignment, assignment.with_changes(value=cst.Name("False"))


def plan(at: api.Position) -> api.Plan:
    """Of each step: the loss; how many numbers of the blocks' gradients there are, and how many of
    them came from memory that nobody initialised; how far the last layer's gradient, and those of
    the blocks, are from those of the same model without checkpointing."""
    facts = {
        "loss": api.NUMBER,
        "numbers": api.COUNT,
        "uninitialised": api.COUNT,
        "head": api.SIZE,
        "blocks": api.MAY_OVERFLOW,
    }
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a model of checkpointed blocks with the gradients of a copy that is not checkpointed.

    Torch fills memory that nobody initialises with NaN, so that runs are alike.
    """
    import torch
    from torch.utils.checkpoint import set_checkpoint_early_stop

    p, device = ctx.params, ctx.device
    torch.manual_seed(ctx.seed)
    blocks = [_block(p.last).to(device) for _ in range(p.blocks)]
    head = torch.nn.Linear(WIDTH, 1).to(device)
    below = [weight for block in blocks for weight in block.parameters()]
    weights = [*below, *head.parameters()]
    optimizer = torch.optim.SGD(weights, lr=p.lr)
    drawn = torch.Generator().manual_seed(ctx.seed + 1)
    torch.use_deterministic_algorithms(True)
    for step in api.each(p.steps):
        rows = torch.randn(p.rows, WIDTH, generator=drawn).to(device).requires_grad_()
        with set_checkpoint_early_stop(p.early_stop):
            loss = _loss(blocks, head, rows, ctx.seed + step, {"use_reentrant": p.reentrant})
            gradients = _gradients(loss, weights)
        plain = _gradients(_loss(blocks, head, rows, ctx.seed + step, None), weights)
        distances = [float((a - b).abs().max()) for a, b in zip(gradients, plain, strict=True)]
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            numbers=sum(weight.numel() for weight in below),
            uninitialised=sum(int(g.isnan().sum()) for g in gradients[: len(below)]),
            head=max(distances[len(below) :]),
            blocks=api.named(
                max(distances[: len(below)], key=lambda d: d if d == d else torch.inf)
            ),
        )
        for weight, gradient in zip(weights, plain, strict=True):
            weight.grad = gradient
        optimizer.step()


def _block(last: bool) -> Any:
    import torch

    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.RReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers[: 2 if last else 3])


def _loss(blocks: Any, head: Any, rows: Any, seed: int, options: Any) -> Any:
    """The loss of a model, with these options of checkpointing, or with None without it."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(seed)
    output = rows
    for block in blocks:
        output = checkpoint(block, output, **options) if options else block(output)
    return head(output).square().mean()


def _gradients(loss: Any, weights: Any) -> list[Any]:
    """The gradients, by ``backward``: the reentrant checkpointing has no other way."""
    for weight in weights:
        weight.grad = None
    loss.backward()
    return [weight.grad.clone() for weight in weights]


def detect(records: api.Records) -> api.Finding | None:
    """In each step, every gradient of a block came from memory that nobody initialised; the loss
    and the gradient of the layer after the blocks are right."""
    steps = records.of("step")
    wrong_steps = [step for step in steps if not api.near(step["blocks"], 0.0, within=1e-6)]
    if not wrong_steps:
        return None
    step = wrong_steps[0]
    share = step["uninitialised"] / step["numbers"]
    return api.Finding(
        f"{step['uninitialised']} of {step['numbers']} numbers of the blocks' gradient come from "
        f"memory that was never initialised, in {len(wrong_steps)} of {len(steps)} steps",
        step=step["step"],
        ranks=records.ranks,
        magnitude=share,
        unit="of the blocks' gradient",
        documented=all(
            s["uninitialised"] == s["numbers"] and api.near(s["head"], 0.0, within=1e-6)
            for s in steps
        ),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss is right as long as no wrong gradient was applied."""
    losses = [step["loss"] for step in records.of("step")]
    return {"the loss of the first step is not finite": losses[0] != losses[0]}


picture = api.lines(
    "Numbers of the blocks' gradient from memory that nobody initialised",
    "without the bug there is none, as every slope is written before it is read",
    lambda step: float(step["uninitialised"]),
    y="numbers",
)
