"""On a CPU, ZeRO without contiguous gradients never averages: each rank trains with its own rows.

This affected users who train, or test, on CPUs at ZeRO stage 1 or 2 with
``contiguous_gradients: false``. Each rank updates its part of the weights with the gradient of its
own rows alone, so with 2 ranks every weight learns from half of the data. After the step the ranks
gather all parts, so the replicas stay equal, and comparing them shows nothing. On a GPU the same
configuration is right.

Root cause: the gradients are sorted by their type into buckets, and the buckets are averaged. The
types that are looked for are named after the device, ``torch.cpu.FloatTensor``. That of a gradient
on a CPU is ``torch.FloatTensor``, so it comes into no bucket, and nobody averages it.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _local_gradients as local

oracle = local.oracle


def run(ctx: api.Context) -> None:
    """Train one step; compare it with the mean over the ranks, and with each rank's own."""
    from scenarios.deepspeed import _partition as partition

    p = ctx.params
    partition.step(
        ctx,
        p.micro_batches,
        0,
        p.lr,
        "DeepSpeedZeroOptimizer",
        bf16={"enabled": False},
        zero_optimization={"stage": p.zero_stage, "contiguous_gradients": p.contiguous},
    )


def exercised(records: api.Records) -> api.Exercise:
    """Gradients were not contiguous, and those of several ranks differed."""
    contiguous = records.params.contiguous
    return api.Exercise.of(
        not contiguous, "gradients were not contiguous", "gradients were contiguous"
    ) & local.parted(records)
