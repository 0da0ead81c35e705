"""Under tensor parallelism, each rank trains Qwen3's q_norm and k_norm with a part of the gradient.

Qwen3 normalises the queries and keys of each attention head by weights that all heads share. The
heads are split over the ranks, and each rank has a copy of these weights. So each rank gets the
gradient of its own heads alone; nobody adds the parts up. The logits of the first step are right,
but the copies part with each step, and from then on the ranks compute with different models. Gemma
3 and other models with such norms had the same.

Root cause: ``base_model_tp_plan`` did not name these norms. Since 5.3.0 it marks them with
``replicated_with_grad_allreduce``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.bugs import api
from scenarios.transformers import _split as split
from scenarios.transformers._sizes import SIZES

WITH_NORMS = {
    "apertus": "Apertus",
    "dots1": "Dots1",
    "exaone4": "Exaone4",
    "exaone_moe": "ExaoneMoe",
    "gemma3": "Gemma3",
    "gemma3n": "Gemma3n",
    "qwen3": "Qwen3",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
    "qwen3_moe": "Qwen3Moe",
    "qwen3_next": "Qwen3Next",
    "qwen3_omni_moe": "Qwen3OmniMoe",
    "t5gemma2": "T5Gemma2",
}
"""The models whose plans the fix changed, and how their classes begin."""


def classes(kinds: Callable[[str], Sequence[str]]) -> str:
    """The classes of these kinds, of each model."""
    return " or ".join(
        f"transformers.models.{model}.modeling_{model}.{name}{kind}"
        for model, name in WITH_NORMS.items()
        for kind in kinds(model)
    )


oracle = split.SplitModel(modules=("q_norm", "k_norm"))


def run(ctx: api.Context) -> None:
    """Differentiate a small model, split over the ranks by its own plan."""

    def make() -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

        if ctx.params.model == "llama":
            return LlamaForCausalLM(LlamaConfig(**SIZES))
        return Qwen3ForCausalLM(Qwen3Config(**SIZES))

    split.differentiate(ctx, make)


def exercised(records: api.Records) -> api.Exercise:
    """A model with norms of each head was split over several ranks."""
    model = records.params.model
    return split.several(records) & api.Exercise.of(
        model == "qwen3", "each head of Qwen3 is normalised", f"the model was {model}"
    )
