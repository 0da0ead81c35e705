"""In Qwen2-MoE, packed rows attend to the rows before them, although those of Qwen2 do not.

Packing puts several short rows into one, with ``position_ids`` that begin again at each of them.
Since 4.53.0 most models build a mask of blocks from them, without flash attention, too. Some
mixtures of experts do not: Qwen2-MoE, OLMoE, Phi-MoE, GraniteMoE, JetMoE and DBRX turn the rotary
embedding back, and let each row see the rows before it. Mixtral and Qwen3-MoE are right.

Root cause: these models still had a function of their own for the mask, which does not look at
``position_ids``. Since 5.0.0 they call ``create_causal_mask`` with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.transformers import _packs as packs
from scenarios.transformers._history import BEFORE_PACKING
from scenarios.transformers._sizes import SIZES


@dataclass
class Params(packs.Params):
    model: str = api.knob("qwen2_moe", choices=("qwen2_moe", "qwen2"), about="that is trained")


SCENARIO = api.Scenario(
    report=(
        "no report of these models; the pull request that made packing work in others",
        "https://github.com/huggingface/transformers/pull/39194",
    ),
    fix="https://github.com/huggingface/transformers/releases/tag/v5.0.0",
    symptom="the gradients of packed rows are those of one long row",
    trigger="packed rows, one of these models, and no flash attention",
    remedy="use flash attention, or pad the rows instead of packing them",
    pins={"transformers": "4.57.6"},
    absent=(BEFORE_PACKING,),
    releases="transformers>=4.44",
    harm="ruins training",
    visibility="silent",
    settings={
        "code": api.by_code("rows of one of these models are packed without flash attention")
    },
    files=("transformers/models/qwen2_moe/modeling_qwen2_moe.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.0.0"),
        "control": api.control("4.57.6 with one row in each", params={"packed": 1}),
        "qwen2": api.control("4.57.6 with Qwen2", params={"model": "qwen2"}),
    },
)

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
