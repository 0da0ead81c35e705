"""AutoEP drops the bias by which DeepSeek-V3 selects its experts.

This affected users of DeepSpeed who train a pretrained DeepSeek-V3, GLM-4.5 or Kimi K2 with AutoEP.
These models select experts by scores and a bias that their training learned. AutoEP replaces the
layers of experts by its own, without that bias. So tokens go to other experts than in the
pretraining, from the first step on: the loss begins higher, and a routing is learned again.

Root cause: the bias was copied if it is a parameter. In transformers it is a buffer. 0.19.8 copies
both.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

picture = api.bars(
    "How far the logits are from those without AutoEP",
    "without the bug they are the same",
    lambda records: ((f"batch {each['step']}", each["off"]) for each in records.of("batch")),
)


def plan(at: api.Position) -> api.Plan:
    facts = {"off": api.SIZE, "unbiased": api.SIZE}
    return {"batch": api.Kind(facts, api.each(at.params.batches))}


def run(ctx: api.Context) -> None:
    """Compare the logits under AutoEP with the model's own, and with those without its bias."""
    import copy

    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    from scenarios.common.hf_trainer import VOCABULARY
    from scenarios.deepspeed import _regression as regression

    torch.manual_seed(ctx.seed)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "n_routed_experts": 4}
    sizes |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8}
    sizes |= {"q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes)).eval()
    unbiased, bias = copy.deepcopy(model), ctx.params.bias
    gate = model.model.layers[1].mlp.gate
    gate.e_score_correction_bias.copy_(torch.tensor([bias, -bias, bias, -bias]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # so that each expert counts
    unbiased.load_state_dict(dict(model.named_parameters()), strict=False)
    own = copy.deepcopy(model).to(ctx.device)
    engine = regression.engine(
        ctx,
        regression.sgd(0.1),
        model,
        train_micro_batch_size_per_gpu=1,
        expert_parallel={"enabled": True, "autoep_size": 1, "preset_model": "deepseek_v3"},
    )
    engine.module.eval()
    unbiased.to(ctx.device)
    for batch in api.each(ctx.params.batches):
        tokens = torch.randint(0, VOCABULARY, (1, 16)).to(ctx.device)
        with torch.no_grad():
            logits, *others = (each(tokens).logits for each in (engine.module, own, unbiased))
        off, to_unbiased = (float((logits - each).norm() / each.norm()) for each in others)
        ctx.record("batch", batch, off=off, unbiased=to_unbiased)


def detect(records: api.Records) -> api.Finding | None:
    """The logits of each batch are those of the model without its bias."""
    batches = records.of("batch")
    wrong = [batch for batch in batches if batch["off"] > 1e-3]
    if not wrong:
        return None
    worst = max(batch["off"] for batch in wrong)
    return api.Finding(
        f"the logits of {len(wrong)} of {len(batches)} batches are off by up to {worst:.3g} of "
        "their norm",
        magnitude=worst,
        documented=all(batch["unbiased"] <= 1e-3 for batch in batches),
    )
