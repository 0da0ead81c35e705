"""The gradients of a tied embedding are not summed over the pipeline stages that hold a copy.

The first and the last pipeline stage each hold a copy of the word embeddings, and both must apply
the sum of the two gradients. With DeepSpeed's new bf16 optimizer each stage applied its own
gradient. The first copy learned as an embedding only, the last one as an output layer only, and
they differed from the first step on.

This affected the training of BLOOM-176B in March 2022 (its run main-2). Nothing failed, and the
loss even looked better. A restart showed the bug, by a spike of the loss: loading a checkpoint
replaces the last stage's copy with the first stage's. The days trained so far were thrown away.

Root cause: in bf16, gradients accumulate in an fp32 buffer of the weight (``_hp_grad``), and the
optimizer's step reads that buffer. ``PipelineEngine._exec_reduce_tied_grads`` still summed
``weight.grad``. That is right in fp16, but in bf16 nothing reads it any more. The fix sums the
buffer.

No published release has the bug: 0.6.1 has no BF16_Optimizer, and 0.6.3 sums the buffer. The buggy
variant is a release that sums ``weight.grad`` again.
"""

from __future__ import annotations

from functools import partial

from harness.bugs import api
from scenarios.common import agree as agreement
from scenarios.common import copies, stepped, usual_checks

LOSS_TOLERANCE = 5e-3
"""How far (nats) the losses of two stages may be from those of one. bf16 rounding alone moved them
by up to 2e-3 in five steps; the bug moves the second by more than 3e-2."""

NORM_TOLERANCE = 1e-3
"""How far (as a fraction) the norms of two equal fp32 gradients may be apart."""


def plan(at: api.Position) -> api.Plan:
    """Each step, with the gradients of the tied weight."""
    step = copies.tied_step(at, bf16=at.params.precision == "bf16")
    return {"step": api.Kind(step, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train the tied pipeline; after every step compare the copies and the applied gradients."""
    from scenarios.common import tied_pipeline as tied

    params = ctx.params
    training = tied.Training(
        lr=params.lr,
        batch=params.batch,
        micro_batches=params.micro_batches,
        bf16=params.precision == "bf16",
    )
    trainer = tied.Trainer(ctx, training)
    with ctx.phase("steps"):
        for number in range(1, params.steps + 1):
            trainer.step(number)


def detect(records: api.Records) -> api.Finding | None:
    """The copies differ after a step, because each stage applied its own gradient instead of the
    sum. All other parameters took the step that plain torch takes."""
    strays = stepped.astray(records, excused=copies.unsummed)
    if strays:
        return stepped.finding(strays)
    parting = copies.parting(records, "drift")
    if parting is None:
        unsummed = [s for s in records.of("step") if "own" in s and not _applies(s, "sum")]
        return api.Finding(_applied(unsummed[0]), documented=False) if unsummed else None
    (name, at_first), *_ = parting.differences.items()
    same_step = [s for s in records.of("step") if s["step"] == parting.step]
    lines = [
        f"step {parting.step}: the stages' copies of {name} differ by {at_first:.3g}, and by "
        f"{max(parting.last_differences.values()):.3g} after step {parting.last_step}",
        *map(_applied, same_step),
    ]
    documented = all(
        _applies(step, "own") and not _applies(step, "sum") for step in records.of("step")
    )
    return parting.finding(lines, records.ranks, documented=documented)


def _applies(step: api.Record, fact: str) -> bool:
    """Whether the applied gradient is the stage's ``own``, or the ``sum`` over the stages."""
    return api.near(step["applied"], step[fact], share=NORM_TOLERANCE)


def _applied(step: api.Record) -> str:
    return (
        f"rank {step['rank']} applied a gradient of norm {step['applied']:.4g}: its own has "
        f"{step['own']:.4g}, the sum over the stages {step['sum']:.4g}"
    )


def exercised(records: api.Records) -> api.Exercise:
    """The stages' own gradients differed, and accumulated in a buffer beside ``weight.grad``."""
    steps = records.of("step")
    buffered = [step for step in steps if step.get("buffered")]
    return copies.gradients_parted(records) & api.Exercise.of(
        len(buffered) == len(steps),
        "they accumulated in a buffer beside weight.grad",
        "they accumulated in weight.grad itself, which the step reads",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, or fire without it, and whether they fired."""
    differs = any(step.get("left_parted") for step in records.of("step", 0))
    return (
        usual_checks.loss_rises(records)
        | copies.norm_differs(records)
        | {"weight.grad differs between the stages": differs}
    )


picture = partial(copies.drifting, field="drift")
agree = partial(agreement.losses, tolerance=LOSS_TOLERANCE, noun="one stage")
