"""Muon makes a matrix that two ranks share orthogonal by a gradient that is only in part the mean.

This affected users who trained with DeepSpeed's Muon at ZeRO stage 1 or 2 on several ranks, with
``reduce_scatter``, which is the default. A weight that lies across the boundary of two ranks' parts
gets a wrong update, whose parts do not belong together: each rank makes another matrix orthogonal.
With a few large weights, that is most of the model. Weights within one part are right. There is no
warning, and the loss falls.

Root cause: ``reduce_scatter`` gives a rank the mean gradient of its own part only. The rest of a
weight's gradient is that of its own rows, divided by the number of ranks. Muon takes the whole
matrix, and ZeRO cuts the rank's part out of the result. 0.19.3 gives each rank the mean of all
parts of such a weight.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.deepspeed import _muon as muon

NEAR = 0.02
"""How far an update may be from the same iteration over the same gradient: it is in bf16."""


def mixed(step: api.Record) -> bool:
    """Each rank made its part of the update from its part of the mean gradient, and from the rest
    of its own one."""
    return bool(step["mixed"] < NEAR)


oracle = muon.Updates(
    mixed,
    "exactly that follows if each rank has its part of the mean gradient, and its own elsewhere",
    muon.SPLIT_FACTS,
    fact="exact",
    near=NEAR,
)


def run(ctx: api.Context) -> None:
    """Train with Muon; compare each update with Muon's, and with that of the mixed gradients."""
    from scenarios.deepspeed import _muon_steps as steps

    steps.train(ctx, ctx.params.zero_stage, ctx.params.micro_batches, ctx.params.reduce_scatter)
