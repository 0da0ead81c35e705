"""Without flash attention, packed rows attend to the rows before them, in LLaMA and all others.

Packing puts several short rows into one, with ``position_ids`` that begin again at each of them;
DataCollatorWithFlattening of transformers makes such batches. Up to 4.52.4 only flash attention
finds the rows. With sdpa, the default, and with eager attention, the positions turn the rotary
embedding, but do not limit attention: each row is trained on the text of strangers. There is no
warning, and the loss falls as usual.

Root cause: the functions that made the masks did not look at ``position_ids``. Pull request 39194
builds a mask of blocks from them, for sdpa, eager and flex attention, if there is no cache; see
``packed_with_cache`` for the rest.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES

oracle = packs.oracle


def run(ctx: api.Context) -> None:
    """Train a LLaMA on packed rows; compare with the same rows alone, and with one long row."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(ctx.seed)
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    packs.train(ctx, model.to(ctx.device), packs.causal)


exercised = packs.several
