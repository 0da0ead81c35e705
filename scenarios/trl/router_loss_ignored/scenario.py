"""trl ignores router_aux_loss_coef for half of the mixtures of experts.

This affected users of trl who train a mixture of experts and set ``router_aux_loss_coef``, so that
its experts stay balanced. With DeepSeek-V3, GLM4-MoE and others the setting had no effect: no
balancing loss was computed, added or logged, and nothing was said. With Qwen3-MoE and Mixtral it
worked. It is the same for SFT, DPO, KTO, GRPO and RLOO.

Root cause: trl took a model for a mixture of experts if its configuration has
``output_router_logits``, which transformers gave to only some of them at that time. Since 1.16.0 a
coefficient for a model without it is an error.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

picture = api.bars(
    "Steps with a balancing loss",
    "without the bug each step has one, or the trainer refuses the setting",
    lambda records: (("steps", sum(each["balanced"] for each in records.of("step"))),),
)


def plan(at: api.Position) -> api.Plan:
    facts = {"balanced": api.FLAG, "refused": api.FLAG}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a tiny mixture of experts; record in which steps a balancing loss was logged."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, DeepseekV3Config, Qwen3MoeConfig
    from trl import SFTConfig, SFTTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import QUIET, VOCABULARY

    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "num_experts": 4}
    if ctx.params.model == "qwen3_moe":
        config: Any = Qwen3MoeConfig(**sizes, head_dim=8)
    else:
        sizes |= {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
        sizes |= {"kv_lora_rank": 8, "q_lora_rank": 8, "v_head_dim": 8}
        config = DeepseekV3Config(**sizes, qk_rope_head_dim=8, qk_nope_head_dim=8)
    torch.manual_seed(ctx.seed)
    model = AutoModelForCausalLM.from_config(config).to(ctx.device)
    arguments = SFTConfig(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        max_steps=ctx.params.steps,
        router_aux_loss_coef=ctx.params.coefficient,
        bf16=False,
        gradient_checkpointing=False,
        **QUIET,
    )
    logged, refused = [], False
    try:
        trainer = SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([{"text": "w1 w2 w3 w4"}] * 8),
            processing_class=texts.tokenizer(VOCABULARY),
        )
    except ValueError as error:
        refused = "router_aux_loss_coef" in str(error)
        if not refused:
            raise
    else:
        trainer.train()
        logged = ["aux_loss" in line for line in trainer.state.log_history if "loss" in line]
    for step, balanced in zip(api.each(ctx.params.steps), logged or [False] * 100, strict=False):
        ctx.record("step", step, balanced=balanced, refused=refused)


def detect(records: api.Records) -> api.Finding | None:
    """No step has the balancing loss that was asked for, and nothing refused it."""
    steps = records.of("step")
    wrong = [step for step in steps if not (step["balanced"] or step["refused"])]
    if not wrong:
        return None
    text = f"{len(wrong)} of {len(steps)} steps have no balancing loss, and nothing was said"
    return api.Finding(text, step=wrong[0]["step"], documented=len(wrong) == len(steps))
