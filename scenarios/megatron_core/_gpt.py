"""A small GPT of megatron-core whose layers are shared by the ranks, and gradients of its losses.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from harness.bugs import api

VOCABULARY, LENGTH, HIDDEN, HEADS, LAYERS = 32, 8, 16, 4, 2


def model(
    ctx: api.Context, settings: dict[str, Any], *, length: int = LENGTH, **arguments: Any
) -> GPTModel:
    """Connect the ranks; the model with random weights, the same on any number of ranks.

    ``settings`` are of its TransformerConfig, ``arguments`` of GPTModel; ``length`` is that of the
    longest row in tokens.
    """
    dist.init_process_group(ctx.lane.backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ctx.world_size)
    tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)  # nothing drops out

    def drawn(weight: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(ctx.seed + sum(weight.shape))
        with torch.no_grad():
            return weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)

    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        tensor_model_parallel_size=ctx.world_size,
        use_cpu_initialization=True,
        init_method=drawn,
        output_layer_init_method=drawn,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        **settings,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=length,
        **arguments,
    ).to(ctx.device)


def after(length: int, device: Any) -> Tensor:
    """[length, length], True where a token (row) must not attend: to those after it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def text(ctx: api.Context, rows: int) -> tuple[Tensor, Tensor]:
    """Random tokens [rows, LENGTH], and the tokens after them."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    ids = torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=generator).to(ctx.device)
    return ids[:, :-1], ids[:, 1:]
