"""With a padding mask, an MoE's auxiliary loss is multiplied by the tensor-parallel size.

This affects users who train a mixture of experts with ``calculate_per_token_loss``, sequence
parallelism and a padding mask. The loss that balances the experts counts as many times as there are
ranks. The gradient of the task is right.

Root cause: with a mask, ``get_tokens_per_expert_and_token_count`` counts a rank's own tokens from
its tokens per expert. But the all-reduce before that has changed these in place, so they are the
tokens of all ranks. Until 0.18 that was right by accident: another bug,
``moe_aux_tensor_parallel``, took a rank's own tokens instead of those of all ranks. The fix of that
bug, in 0.19.0, exposed this one. Here that fix is put into 0.16.1, because 0.19 needs Python 3.12.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.megatron_core import _moe_shares as shares
from scenarios.megatron_core._moe_fix import times_ranks

Params = shares.Params


DEFECT = times_ranks(
    "the change of 0.19.0, which multiplies the auxiliary loss by the ranks: with a mask, it was "
    "multiplied by all ranks' tokens already"
)

SCENARIO = api.Scenario(
    report=(
        "Silent numerical-correctness bugs in Megatron Core parallelism composition (number 10)",
        "https://github.com/NVIDIA/Megatron-LM/issues/7452",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/pull/7481 is open as of 0.19.2; the fixed variant "
    "is 0.16.1, where two bugs cancel",
    symptom="with a padding mask the router's local number of tokens is that of all ranks, so the "
    "auxiliary loss's gradient is scaled by a global factor",
    trigger="calculate_per_token_loss, sequence parallelism, a padding mask and a router with an "
    "auxiliary loss",
    remedy="divide moe_aux_loss_coeff by the tensor-parallel size",
    pins={"megatron-core": "0.16.1"},
    named_by=("spmd_types: 10", "reference: MOE.12"),
    harm="ruins training",
    visibility="silent",
    settings={
        "tensor_parallel": api.above(1),
        "code": api.by_code("calculate_per_token_loss is set and an MoE gets a padding mask"),
    },
    seen={
        "megatron.core.transformer.moe.router.TopKRouter": api.needed(
            {"config.calculate_per_token_loss": True}
        )
    },
    files=("megatron/core/transformer/moe/moe_utils.py",),
    releases="megatron-core>=0.16",
    absent=(api.Absent("megatron-core<0.16", "its routers take no mask"),),
    variants={
        "buggy": api.expect_symptom(
            about="0.16.1 with the change that 0.19.0 made to the router", defects=(DEFECT,)
        ),
        "fixed": api.expect_clean(),
        "control": api.control(
            "with that change, but without a mask", params={"masked": False}, defects=(DEFECT,)
        ),
        "one_rank": api.control("with that change, on one rank", ranks=1, defects=(DEFECT,)),
        "remedy": api.expect_clean(
            about="with that change, and half of the coefficient",
            params={"times": 0.5},
            defects=(DEFECT,),
        ),
    },
)


def by_ranks(step: shares.Step, records: api.Records) -> bool:
    """Each step applied the auxiliary loss's gradient once for each rank, and the task's once."""
    return step.has(1, len(records.ranks))


oracle = shares.Scaled(by_ranks)


def run(ctx: api.Context) -> None:
    """Train the router alone, on sequences that the ranks share."""
    from scenarios.megatron_core import _moe_router as router

    with ctx.phase("steps"):
        router.train(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """The ranks shared padded sequences, the loss was one per token, and the auxiliary loss had a
    gradient."""
    masked = records.params.masked
    return shares.shared(records) & api.Exercise.of(
        masked, "there was a padding mask", "without a mask"
    )
