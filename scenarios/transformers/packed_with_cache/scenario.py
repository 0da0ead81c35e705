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

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES


@dataclass
class Params(packs.Params):
    use_cache: bool = api.knob(True, about="of the configuration; True is the default")
    mask: bool = api.knob(False, about="an attention_mask of ones is passed")


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


REMEDY = api.Defect(
    upstream="transformers",
    file="transformers/masking_utils.py",
    scope="_preprocess_mask_arguments",
    edit=by_its_tokens,
    about="our remedy: a cache without tokens does not prevent the search for packed rows",
)

SCENARIO = api.Scenario(
    report=(
        "no report about the cache; a pull request about a mask of ones",
        "https://github.com/huggingface/transformers/pull/46634",
    ),
    fix="none as of transformers 5.24.0",
    symptom="the gradients of packed rows are those of one long row",
    trigger="packed rows with a cache, the default, or a mask of ones, without flash attention",
    remedy="set model.config.use_cache = False before a training, and pass no attention_mask",
    pins={"transformers": "5.23.0"},
    absent=(
        api.Absent(
            "transformers<4.53",
            "only since 4.53.0 masks are made from position_ids at all",
            "https://github.com/huggingface/transformers/pull/39194",
        ),
    ),
    releases="transformers>=4.53",
    harm="ruins training",
    visibility="silent",
    settings={"code": api.by_code("rows are packed for a model whose use_cache is True")},
    known_upstream=False,
    known_in_part="that a mask of ones has this effect",
    files=("transformers/masking_utils.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(about="5.23.0 with our remedy", defects=(REMEDY,)),
        "control": api.control("5.23.0 with use_cache=False", params={"use_cache": False}),
        "single": api.control("5.23.0 with one row in each", params={"packed": 1}),
        "mask": api.expect_symptom(
            about="5.23.0 with use_cache=False and a mask of ones",
            params={"use_cache": False, "mask": True},
        ),
    },
)

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
