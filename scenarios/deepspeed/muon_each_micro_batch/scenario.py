"""At ZeRO stage 3, Muon makes an update of each micro-batch, and applies the sum of them.

This affected users who train with DeepSpeed's Muon at stage 3 and accumulate gradients. Muon's
update has singular values near 1, whatever the size of the gradient. With 4 micro-batches 4 such
matrices are added up, so the update is about 4 times too large; it has another direction, too, and
the momentum moves 4 times in a step. At stages 1 and 2, and without accumulation, it is right.
There is no warning.

Root cause: stage 3 calls Muon where it reduces gradients, which happens in each micro-batch. Stages
1 and 2 call it at the boundary of the accumulation.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _muon as muon


def summed(step: api.Record) -> bool:
    """Each update is the sum of the updates that Muon makes of each micro-batch."""
    return bool(step["each"] < muon.NEAR)


oracle = muon.Updates(summed, "that follows if an update is made of each micro-batch")


def run(ctx: api.Context) -> None:
    """Train with Muon; compare each update with Muon's, and with the sum of those of each
    micro-batch."""
    from scenarios.deepspeed import _muon_steps as steps

    steps.train(ctx, ctx.params.zero_stage, ctx.params.micro_batches)
