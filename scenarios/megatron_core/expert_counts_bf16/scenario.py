"""In bf16, megatron-core rounds the tokens of each expert, and moves its bias the wrong way.

This affects users who balance a mixture of experts without an auxiliary loss, as DeepSeek-V3 does,
and train in bf16. Each step the bias of an expert moves up if it had fewer tokens than the mean,
and down otherwise. The tokens are counted in bf16, which has 8 bits: from 256 on, one token more
changes nothing, and from 16,384 on, fewer than 64. The errors of micro-batches and ranks add up, so
experts are moved away from the balance.

Root cause: the counts are a floating-point buffer of the router, which ``Float16Module`` converts
with all others. The bias itself is converted back to fp32 in each forward pass, and the counts are
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api

EXPERTS, HIDDEN, TOKENS = 4, 8, 64

Counts = api.many(api.COUNT, EXPERTS)

picture = api.bars(
    "By how many tokens the count of an expert is off",
    "without the bug no token is missing",
    lambda records: (
        (f"expert {expert}", step["counts"][expert] - step["exact"][expert])
        for step in records.of("step")[:1]
        for expert in range(EXPERTS)
    ),
)


def counted_in_fp32(function: Any) -> api.Edits:
    """The counts become fp32 with the bias."""
    import libcst as cst

    code = "if self.expert_bias is not None: self.local_tokens_per_expert.data = {}"
    line = cst.parse_statement(code.format("self.local_tokens_per_expert.data.float()"))
    yield function.body, function.body.with_changes(body=[*function.body.body, line])


def directions(counts: Sequence[int]) -> list[int]:
    """Where the bias of each expert must go: up, 1, or down, -1."""
    mean = sum(counts) / len(counts)
    return [(mean > count) - (mean < count) for count in counts]


def plan(at: api.Position) -> api.Plan:
    moved = api.many(api.NUMBER, EXPERTS)
    facts = {"counts": Counts, "exact": Counts, "rounded": Counts, "moved": moved}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Route random tokens; record the counts, and where upstream's update moves the biases."""
    import torch
    from megatron.core.distributed.finalize_model_grads import (
        _update_router_expert_bias,
        reset_model_temporary_tensors,
    )
    from megatron.core.transformer.module import Float16Module

    from scenarios.megatron_core import _moe_router as router
    from scenarios.megatron_core import _training as training

    is_bf16 = ctx.params.precision == "bf16"
    config = training.config(
        ctx,
        hidden_size=HIDDEN,
        num_attention_heads=1,
        num_moe_experts=EXPERTS,
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        bf16=is_bf16,
        params_dtype=torch.bfloat16 if is_bf16 else torch.float32,
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    routed = router.Routed(config, torch.eye(EXPERTS, HIDDEN)).to(ctx.device)  # near the balance
    model, top = Float16Module(config, routed) if is_bf16 else routed, routed.router
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    for step in api.each(ctx.params.steps):
        exact, rounded = torch.zeros(EXPERTS, dtype=torch.long), torch.zeros(EXPERTS, dtype=dtype)
        for _ in range(ctx.params.batches):
            rows = torch.randn(TOKENS, 1, HIDDEN, generator=generator).to(ctx.device, dtype)
            chosen = top(rows)[1].sum(0).cpu()
            exact += chosen
            rounded += chosen
        counts, before = top.local_tokens_per_expert.tolist(), top.expert_bias.clone()
        _update_router_expert_bias([model], config)
        reset_model_temporary_tensors(config, [model])
        ctx.record(
            "step",
            step,
            counts=list(map(int, counts)),
            exact=exact.tolist(),
            rounded=list(map(int, rounded.tolist())),
            moved=(top.expert_bias - before).sign().tolist(),
        )


def detect(records: api.Records) -> api.Finding | None:
    """The tokens of experts are counted in bf16, so that biases move in wrong directions."""
    steps = records.of("step")
    wrong = [step for step in steps if step["counts"] != step["exact"]]
    if not wrong:
        return None
    astray = sum(step["moved"] != directions(step["exact"]) for step in steps)
    off = max(abs(a - b) for s in wrong for a, b in zip(s["counts"], s["exact"], strict=True))
    return api.Finding(
        f"the count of an expert is off by up to {off} tokens; in {astray} of {len(steps)} steps a "
        "bias moves in the wrong direction",
        step=wrong[0]["step"],
        magnitude=off,
        unit="tokens",
        documented=astray > 0 and all(step["counts"] == step["rounded"] for step in steps),
    )
