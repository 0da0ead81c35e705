"""With context parallelism, the gradient is too large by the number of context-parallel ranks.

This affects users who train with megatron-core 0.8.0, its gradient buffers, and the loss function
of its training script, which sums over the context-parallel ranks and multiplies by their number.
On 2 ranks each gradient is twice too large. The printed loss is right. SGD takes steps that are too
large, clipping cuts away too much, and the gradient norm that is logged is wrong; Adam hides most
of it.

Root cause: the script multiplies the loss by the number of context-parallel ranks, because the
buffers average over all ranks that have a copy of the model. But the buffers of this release sum
over these ranks, and divide by the number of data-parallel ranks only.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied
from scenarios.megatron_core import _context as context


@dataclass
class Params(context.Params):
    pass


SCENARIO = api.Scenario(
    report=(
        "[BUG] wrong loss scaling when context parallel is on",
        "https://github.com/NVIDIA/Megatron-LM/issues/906",
        "https://github.com/NVIDIA/Megatron-LM/issues/673",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/commit/3bdcbbbe5d",
    symptom="the loss is multiplied by the context-parallel size, and the gradients are divided by "
    "the data-parallel size alone",
    trigger="context parallelism, and a loss function that multiplies by the number of its ranks",
    remedy="do not multiply the loss by the context-parallel size",
    pins={"megatron-core": "0.8.0"},
    named_by=("ttrace: NVIDIA/Megatron-LM#906",),
    harm="ruins training",
    visibility="silent",
    settings={"code": api.by_code("ranks share sequences (context parallelism)")},
    seen={
        "megatron.core.transformer.transformer_config.TransformerConfig": api.needed(
            {"context_parallel_size": api.above(1)}
        )
    },
    releases="megatron-core>=0.8",  # older ones have other gradient buffers
    files=("megatron/core/distributed/distributed_data_parallel.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.9.0"),
        "control": api.control("0.8.0 on one rank", ranks=1),
    },
)

oracle = applied.Applied(
    applied.Step,
    context.times_ranks,
    parts=lambda at: at.world_size,
    replicas=True,
    words=applied.of_first,
    reason="the ratio is the number of ranks that share a sequence, {ranks}",
    checks=[applied.same_direction],
)


def run(ctx: api.Context) -> None:
    """Train on sequences that the ranks share."""
    from scenarios.megatron_core import _context_training as training

    with ctx.phase("steps"):
        training.train(ctx)


exercised = context.shared
