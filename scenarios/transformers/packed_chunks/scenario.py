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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 8
"""Of the layers that attend in chunks, in tokens."""


@dataclass
class Params(packs.Params):
    chunked: bool = api.knob(True, about="layers attend in chunks of 8 tokens")


SCENARIO = api.Scenario(
    report=(
        "no report; the release with the change",
        "https://github.com/huggingface/transformers/releases/tag/v5.23.0",
    ),
    fix="https://github.com/huggingface/transformers/releases/tag/v5.23.0",
    symptom="the gradient of a packed row depends on the length of the rows before it",
    trigger="Llama 4, rows that are packed, and a pack that is longer than a chunk",
    remedy="pad the rows to a multiple of attention_chunk_size before you pack them",
    pins={"transformers": "5.22.2"},
    absent=(
        api.Absent(
            "transformers<4.51",
            "Llama 4 came with 4.51.0",
            "https://github.com/huggingface/transformers/releases/tag/v4.51.0",
        ),
    ),
    releases="transformers>=4.53",
    harm="ruins training",
    visibility="silent",
    settings={"code": api.by_code("rows of Llama 4 are packed")},
    files=("transformers/masking_utils.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("5.23.0"),
        "control": api.control("5.22.2 with one row in each", params={"packed": 1}),
        "unchunked": api.control("5.22.2 without chunks", params={"chunked": False}),
    },
)

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
