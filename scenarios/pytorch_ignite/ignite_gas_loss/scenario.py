"""With gradient accumulation ignite reports the loss divided by the number of micro-batches.

The trainer of ``create_supervised_trainer(gradient_accumulation_steps=k)`` returns the loss of each
micro-batch, for logs, for a running average, for early stopping. It returns a k-th of it. The
training is right: the gradients must be divided by k. But the curve is k times too low, and cannot
be compared with one of another k, nor with the loss of an evaluation.

Root cause: ``update`` in ``supervised_training_step`` assigns ``loss / k`` to ``loss``, calls
``backward``, and passes that loss to ``output_transform``. The steps with apex, AMP and XLA do the
same. The fix multiplies it by k again.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """For each micro-batch: the reported loss, plain torch's loss, and the distance to plain
    torch's weights."""
    facts = {"reported": api.NUMBER, "right": api.NUMBER, "apart": api.SIZE}
    return {"step": api.Kind(facts, api.each(at.params.steps * at.params.accumulation))}


def run(ctx: api.Context) -> None:
    """Train with ignite's trainer, and a copy with plain torch."""
    import copy

    import torch
    from ignite.engine import Events, create_supervised_trainer

    from scenarios.common import linear

    p = ctx.params
    torch.manual_seed(ctx.seed)
    model = linear.model().to(ctx.device)
    plain = copy.deepcopy(model)
    rows = linear.batches(ctx, model, 8, distance=2.0, noise=0.1)
    batches = [next(rows) for _ in range(p.steps * p.accumulation)]
    ours, its = (torch.optim.SGD(each.parameters(), p.lr) for each in (plain, model))
    trainer = create_supervised_trainer(
        model, its, linear.loss, device=ctx.device, gradient_accumulation_steps=p.accumulation
    )

    def completed(engine: Any) -> None:
        number = engine.state.iteration
        inputs, labels = batches[number - 1]
        loss = linear.loss(plain(inputs), labels)
        (loss / p.accumulation).backward()
        if number % p.accumulation == 0:
            ours.step()
            ours.zero_grad()
        apart = float((plain.weight - model.weight).detach().abs().max())
        ctx.record("step", number, reported=engine.state.output, right=float(loss), apart=apart)

    trainer.add_event_handler(Events.ITERATION_COMPLETED, completed)
    trainer.run(batches, max_epochs=1)


def detect(records: api.Records) -> api.Finding | None:
    """Each reported loss is that of plain torch divided by gradient_accumulation_steps."""
    steps = records.of("step")
    faults = [s for s in steps if not api.near(s["reported"], s["right"], share=1e-4)]
    if not faults:
        return None
    part, example = 1 / records.params.accumulation, faults[0]
    shares = [step["reported"] / step["right"] for step in steps]
    return api.Finding(
        f"the loss of micro-batch {example['step']} is reported as {example['reported']:.5g}, "
        f"{example['reported'] / example['right']:.4g} times the right one, {example['right']:.5g}",
        step=example["step"],
        magnitude=max(abs(share - 1) for share in shares),
        unit="of the right loss",
        documented=all(api.near(share, part, share=1e-4) for share in shares) and not _apart(steps),
    )


def _apart(steps: list[api.Record]) -> bool:
    return any(step["apart"] > 1e-5 for step in steps)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The training is right."""
    return {"the weights are not those of plain torch": _apart(records.of("step"))}


picture = api.lines(
    "The reported loss of each micro-batch",
    "with the bug it is a fraction of plain torch's loss",
    lambda step: float(step["reported"] / step["right"]),
    x="micro-batch",
    y="times plain torch's loss",
    limits={"right": 1.0},
)
