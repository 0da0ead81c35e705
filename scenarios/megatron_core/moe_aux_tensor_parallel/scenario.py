"""With tensor parallelism an MoE's auxiliary loss has a fraction of its weight: half on 2 ranks.

This affects users who train a mixture of experts with ``calculate_per_token_loss`` and sequence
parallelism, which mixtures of experts need for tensor parallelism. The loss that balances the
experts has only 1/ranks of the weight that ``moe_aux_loss_coeff`` sets. So the same settings
balance less on more ranks. The gradient of the task is right.

Root cause: all gradients are divided by the number of tokens at the end, so the router multiplies
its auxiliary loss by that number first. But it takes the number of its own tokens, which are only a
part of the sequence. The fix multiplies by the number of ranks, too. Releases that accept a padding
mask are right with one: by another bug (``moe_aux_masked``), their number of tokens is then that of
all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.megatron_core import _moe_shares as shares
from scenarios.megatron_core._moe_fix import times_ranks


@dataclass
class Params(shares.Params):
    masked: bool = api.knob(False, about="whether the router gets a padding mask; from 0.16 on")


REMEDY = times_ranks(
    "our remedy, the change of 0.19.0: the auxiliary loss is multiplied by the ranks"
)

SCENARIO = api.Scenario(
    report=(
        "Fix MoE aux_loss / z_loss gradient scaling with TP > 1",
        "https://github.com/NVIDIA/Megatron-LM/pull/5047",
        "https://github.com/NVIDIA/Megatron-LM/issues/1652",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/pull/5047 (megatron-core 0.19.0, which needs Python "
    "3.12); the fixed variant is 0.16.1 with the same change",
    symptom="when calculate_per_token_loss is set, the gradient of the MoE's auxiliary loss "
    "depends on the tensor-parallel size",
    trigger="calculate_per_token_loss, sequence parallelism and a router with an auxiliary loss",
    remedy="multiply moe_aux_loss_coeff by the tensor-parallel size",
    pins={"megatron-core": "0.16.1"},
    absent=(
        api.Absent(
            "megatron-core<0.12",
            "only since 0.12.0 the router multiplies its auxiliary loss by a number of tokens",
            "https://github.com/NVIDIA/Megatron-LM/commit/87d9d2506a",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={
        "tensor_parallel": api.above(1),
        "code": api.by_code("calculate_per_token_loss is set and an MoE has an auxiliary loss"),
    },
    seen={
        "megatron.core.transformer.moe.router.TopKRouter": api.needed(
            {"config.calculate_per_token_loss": True}
        )
    },
    files=("megatron/core/transformer/moe/router.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(about="0.16.1 with the change of 0.19.0", defects=(REMEDY,)),
        "control": api.control(
            "0.16.1 without calculate_per_token_loss", params={"per_token": False}
        ),
        "one_rank": api.control("0.16.1 on one rank", ranks=1),
        "masked": api.expect_clean(
            about="0.16.1 with a padding mask: another bug doubles what this one halves",
            params={"masked": True},
        ),
        "remedy": api.expect_clean(
            about="0.16.1 with twice the coefficient", params={"times": 2.0}
        ),
    },
)


def divided(step: shares.Step, records: api.Records) -> bool:
    """Each step applied 1/ranks of the auxiliary loss's gradient, and all of the task's."""
    return step.has(1, 1 / len(records.ranks))


oracle = shares.Scaled(divided)
exercised = shares.shared


def run(ctx: api.Context) -> None:
    """Train the router alone, on sequences that the ranks share."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx)
