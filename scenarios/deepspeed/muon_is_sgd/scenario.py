"""Without ZeRO, DeepSpeed's Muon is plain SGD: it adds the raw gradient, without momentum.

This affected users whose configuration names the optimizer Muon, and no stage of ZeRO, or stage 0,
which is the default. Each weight moves by the rate times its gradient. Muon would have added the
orthogonal matrix that is nearest to the gradient with momentum, whose size does not depend on the
gradient's. So the rate that suits Muon does not suit what runs. There is no warning, and the loss
falls.

Root cause: Muon's step takes the gradient for an update that is already orthogonal. ZeRO makes it
so before it calls the step, as its flat partitions have no matrices any more. Without ZeRO nobody
does.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _muon as muon


def plain(step: api.Record) -> bool:
    """Each update is the mean gradient times the rate, as that of SGD."""
    return bool(step["sgd"] < 1e-4)


oracle = muon.Updates(plain, "exactly that follows if the raw gradient is the update")


def run(ctx: api.Context) -> None:
    """Train with Muon; compare each update with Muon's, and with SGD's."""
    from scenarios.deepspeed import _muon_steps as steps

    steps.train(ctx, ctx.params.zero_stage, ctx.params.micro_batches)
