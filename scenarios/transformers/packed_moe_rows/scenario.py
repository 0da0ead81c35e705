"""In Qwen2-MoE, packed rows attend to the rows before them, although those of Qwen2 do not.

Packing puts several short rows into one, with ``position_ids`` that begin again at each of them.
Since 4.53.0 most models build a mask of blocks from them, without flash attention, too. Some
mixtures of experts do not: Qwen2-MoE, OLMoE, Phi-MoE, GraniteMoE, JetMoE and DBRX turn the rotary
embedding back, and let each row see the rows before it. Mixtral and Qwen3-MoE are right.

Root cause: these models still had a function of their own for the mask, which does not look at
``position_ids``. Since 5.0.0 they call ``create_causal_mask`` with them.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES

oracle = packs.oracle


def run(ctx: api.Context) -> None:
    """Train on packed rows; compare with the same rows alone, and with one long row."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

    torch.manual_seed(ctx.seed)
    if ctx.params.model == "qwen2":
        model: Any = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_cache=False))
    else:
        experts = {"num_experts": 4, "num_experts_per_tok": 2}
        widths = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
        config = Qwen2MoeConfig(**SIZES, **experts, **widths, use_cache=False)
        model = Qwen2MoeForCausalLM(config)
    packs.train(ctx, model.to(ctx.device), packs.causal)


def exercised(records: api.Records) -> api.Exercise:
    """Several rows were packed for Qwen2-MoE."""
    model = records.params.model
    return packs.several(records) & api.Exercise.of(
        model == "qwen2_moe", "Qwen2-MoE was trained", f"the model was {model}"
    )
