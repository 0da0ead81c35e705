"""In GPT-OSS, packed rows attend to the rows before them: their gradients are mixed.

Packing puts several short rows into one, and ``position_ids`` that begin again at each of them tell
the model where. LLaMA and most others build a mask from them. GPT-OSS turns its rotary embedding
back, and leaves the mask alone, so each row is trained on the text of strangers. The loss falls as
usual. DataCollatorWithFlattening of transformers and trl's ``packing=True`` and
``padding_free=True`` pass such positions. Kernels that get the lengths of the rows, such as flash
attention with sinks, are not affected; eager and flex attention are.

Root cause: ``GptOssModel.forward`` calls ``create_causal_mask`` without its ``position_ids``, by
which that function finds packed rows. AFMoE does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.transformers import _packs as packs
from scenarios.transformers._sizes import SIZES

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 8
"""Of the layers with sliding attention, in tokens."""


def with_positions(function: Any) -> api.Edits:
    """The function that makes the masks gets the positions."""
    import libcst as cst
    import libcst.matchers as m

    pattern = m.Dict([m.ZeroOrMore(), m.DictElement(m.SimpleString('"past_key_values"'))])
    entry = cst.DictElement(cst.SimpleString('"position_ids"'), cst.Name("position_ids"))
    for node in m.findall(function, pattern):
        arguments: Any = node
        yield arguments, arguments.with_changes(elements=[*arguments.elements, entry])


oracle = packs.oracle


def run(ctx: api.Context) -> None:
    """Train on packed rows; compare with the same rows alone, and with one long row."""
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

    def masks(at: Tensor, rows: Tensor) -> Any:
        full, ahead = packs.causal(at, rows), at[:, None] - at
        window = packs.added((ahead >= 0) & (ahead < WINDOW))
        kinds = {"full_attention": full, "sliding_attention": window}
        return kinds if ctx.params.model == "gpt_oss" else full

    torch.manual_seed(ctx.seed)
    if ctx.params.model == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))
    else:
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}
        model = GptOssForCausalLM(GptOssConfig(**SIZES, **experts, use_cache=False))
    model.set_attn_implementation("eager")
    packs.train(ctx, model.to(ctx.device), masks)


def exercised(records: api.Records) -> api.Exercise:
    """Several rows were packed for GPT-OSS."""
    model = records.params.model
    return packs.several(records) & api.Exercise.of(
        model == "gpt_oss", "GPT-OSS was trained", f"the model was {model}"
    )
