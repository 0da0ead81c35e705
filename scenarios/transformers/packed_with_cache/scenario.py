"""With use_cache=True, the default, packed rows attend to the rows before them in a training, too.

Packing puts several short rows into one, with ``position_ids`` that begin again at each of them.
``forward`` makes a cache for keys and values, also in training mode, because the configuration says
``use_cache=True``. Then the positions still turn the rotary embedding, but no longer limit
attention: each row is trained on the text of strangers, and the loss falls as usual. Every model
that builds its mask in ``masking_utils`` is affected, LLaMA too, with eager, sdpa and flex
attention. A loop of one's own, with accelerate or plain torch, meets it, and so does the Trainer up
to 4.57.6. Since 5.0.0 the Trainer sets ``use_cache`` to False; trl's SFTTrainer passes it. An
``attention_mask`` of ones has the same effect.

Root cause: ``_preprocess_mask_arguments`` looks for packed rows only if there is no cache, because
"generally" a training has none. A cache without tokens is one.

Pull request 46634 reports the same of a mask of ones, and was closed. We know of no report about
the cache.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES


def by_its_tokens(function: Any) -> api.Edits:
    """A cache without tokens counts as none."""
    import libcst as cst
    import libcst.matchers as m

    cache = m.Name("past_key_values") | m.Name("cache")
    none = m.ComparisonTarget(m.Is(), m.Name("None"))
    packing = m.BooleanOperation(right=m.Comparison(cache, [none]))
    for node in m.findall(function, packing):
        condition: Any = node
        name = condition.right.left.value
        replacement = cst.parse_expression(f"({name} is None or not {name}.get_seq_length())")
        yield condition, condition.with_changes(right=replacement)


oracle = packs.oracle


def run(ctx: api.Context) -> None:
    """Train a LLaMA on packed rows; compare with the same rows alone, and with one long row."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(ctx.seed)
    config = LlamaConfig(**SIZES, use_cache=ctx.params.use_cache)
    model: Any = LlamaForCausalLM(config).to(ctx.device)
    packs.train(ctx, model, packs.causal, ones=ctx.params.mask)


def exercised(records: api.Records) -> api.Exercise:
    """Several rows were packed, with a cache or a mask of ones."""
    p = records.params
    return packs.several(records) & api.Exercise.of(
        p.use_cache or p.mask,
        "the model made a cache" if p.use_cache else "there was a mask of ones",
        "there was neither a cache nor a mask",
    )
