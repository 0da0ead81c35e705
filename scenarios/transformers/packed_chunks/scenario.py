"""In Llama 4, the chunks of attention of a packed row begin where the pack begins, not the row.

Three of four layers of Llama 4 attend in chunks: a token sees those before it in its chunk of 8192
tokens. In a pack, chunks are counted from the first token of the pack. So a row that crosses such
a border loses the sight of its own beginning, at a place that depends on the rows before it, and
its gradient changes with its neighbours. Rows do not see each other. There is no warning, and the
loss falls as usual. Sliding windows, as in Gemma 3, are not affected: they count from the query.

Root cause: ``create_chunked_causal_mask`` gives the places in the pack to the function that cuts
the chunks. Since 5.23.0 ``remap_positions_for_packed_sequence`` gives it the places in the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 8
"""Of the layers that attend in chunks, in tokens."""


oracle = features.Feature("exactly that follows if chunks are counted from the start of the pack")


def run(ctx: api.Context) -> None:
    """Train a Llama 4 on packed rows; compare with the same rows alone, and with other chunks."""
    import torch
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    def masks(at: Tensor, rows: Tensor) -> Any:
        visible = (at[:, None] >= at) & (rows[:, None] == rows)
        together = at[:, None] // CHUNK == at // CHUNK
        return {
            "full_attention": packs.added(visible),
            "chunked_attention": packs.added(visible & together),
        }

    torch.manual_seed(ctx.seed)
    kinds = ["chunked_attention" if ctx.params.chunked else "full_attention", "full_attention"]
    chunks = {"attention_chunk_size": CHUNK, "layer_types": kinds, "num_local_experts": 2}
    widths = {"intermediate_size_mlp": 32, "num_experts_per_tok": 1}
    config = Llama4TextConfig(**SIZES, **chunks, **widths, use_cache=False)
    packs.train(ctx, Llama4ForCausalLM(config).to(ctx.device), masks)


def exercised(records: api.Records) -> api.Exercise:
    """Several rows were packed, for layers that attend in chunks."""
    return packs.several(records) & api.Exercise.of(
        records.params.chunked, f"chunks of {CHUNK} tokens", "no layer attends in chunks"
    )
