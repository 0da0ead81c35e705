"""The Trainer multiplies the auxiliary loss of a mixture of experts by ranks and micro-batches.

The auxiliary loss keeps the experts equally busy. On two ranks with two accumulated micro-batches
its gradient is 4 times the one that ``router_aux_loss_coef`` asks for; the task's gradient is
right. So the more GPUs and micro-batches there are, the more the balance of the experts counts. A
coefficient that was tuned on one GPU has another effect on 64. We ran Mixtral; the report is about
Qwen3-MoE.

Root cause: the model divides the sum of the task's losses by the number of labels in the whole
batch, and then adds the auxiliary loss, a mean, undivided. ``training_step`` does not divide by the
number of micro-batches, and ``compute_loss`` multiplies the sum of both by the number of ranks,
because the model is expected to have divided all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, counted


def multiplied(_: counted.Step, records: api.Records) -> bool:
    """The auxiliary gradient is multiplied by the ranks and by the micro-batches, or by one of
    them; the task's is right. Both are divided by the micro-batches once more where
    ``trainer_gas_twice`` is there, too."""
    steps = records.typed(counted.Step)
    ranks, parts = len(records.ranks), records.params.accumulation
    return any(
        all(_near(step.micro, (task, task * factor)) for step in steps)
        for task in (1, 1 / parts)
        for factor in {ranks * parts, ranks, parts} - {1}
    )


def _near(shares: Sequence[float], expected: Sequence[float]) -> bool:
    return all(api.near(a, b, share=5e-3) for a, b in zip(shares, expected, strict=True))


def both(wrong_steps: Sequence[counted.Step], _: api.Records) -> Iterator[str]:
    """The shares of both gradients."""
    for step in wrong_steps:
        task, auxiliary = step.micro
        yield (
            f"rank {step.rank}, step {step.step}: the task's gradient counts {task:.4g} times, "
            f"that of the auxiliary loss {auxiliary:.4g} times (right: 1 each)"
        )


@dataclass(frozen=True)
class Auxiliary(applied.Applied[counted.Step]):
    """Steps are as wrong as the share of the auxiliary gradient is."""

    unit = "of the right auxiliary gradient"

    def error(self, step: counted.Step, records: api.Records) -> float:
        return abs(step.micro[1] - 1)


def ranks_unlike(records: api.Records) -> dict[str, bool]:
    """All ranks apply the same, so comparing them misses the bug."""
    by_step: dict[int, set[float]] = {}
    for step in records.typed(counted.Step):
        by_step.setdefault(step.step, set()).add(round(step.applied, 5))
    return {"the ranks apply different updates": any(len(norms) > 1 for norms in by_step.values())}


oracle = Auxiliary(counted.Step, multiplied, parts=lambda at: 2, words=both, checks=[ranks_unlike])


def run(ctx: api.Context) -> None:
    """Train a tiny Mixtral; compare each applied gradient with plain torch's."""
    from scenarios.transformers.moe_aux_world import mixtral

    with ctx.phase("init"):
        trainer = mixtral.trainer(ctx)
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks or several micro-batches made each step, as many as were requested."""
    return counted.divided(records, [step.micro_batches for step in records.typed(counted.Step)])
