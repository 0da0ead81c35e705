"""torchtitan's backend for transformers' models leaves the frequencies of rotary positions unset.

This affects users who train a model of transformers with torchtitan's
``transformers_modeling_backend`` and transformers 5. The Trainer makes the model on the meta device
and then gives it memory. The weights are initialised or loaded after that; the frequencies of the
rotary positions are not, and no checkpoint has them. They stay what the memory happens to be, often
zeros. With zeros no token has a position: attention sees a set of tokens instead of a sequence. A
model that is trained further begins with a loss that is far too high, and one that is trained from
the start never learns an order. Nothing is raised or logged.

Root cause: ``init_states`` computes the frequencies by each module's ``rope_init_fn``, an attribute
that transformers 5.0 has removed. A module without it is left out.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features
from scenarios.common.line_edits import setting

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = 64
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
}

oracle = features.Feature("exactly that follows if all frequencies are 0")


def computed(function: Any) -> api.Edits:
    """The frequencies come from the method that transformers 5 has instead."""
    import libcst as cst

    code = 'rope_init_fn = getattr(module, "compute_default_rope_parameters", None)'
    for line in setting(function, "rope_init_fn"):
        yield line, cst.parse_statement(code)


def run(ctx: api.Context) -> None:
    """Train upstream's model; its gradients with other frequencies are beside it."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    p = ctx.params
    torch.manual_seed(ctx.seed)
    model, config = _model(ctx)
    frequencies = model.model.model.rotary_emb.inv_freq
    right = LlamaRotaryEmbedding(config).inv_freq
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(rows: Tensor) -> Tensor:
        logits = model(rows)[:, :-1]
        return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def differentiated(rows: Tensor, values: Tensor) -> features.Gradients:
        """The gradients with other frequencies, which are as before in the end."""
        before = frequencies.clone()
        frequencies.copy_(values)
        gradients = features.of_losses(model, [loss(rows)])
        frequencies.copy_(before)
        return gradients

    for step in api.each(p.steps):
        rows = torch.randint(VOCABULARY, (4, p.length))
        expected = differentiated(rows, right)
        documented = differentiated(rows, torch.zeros_like(right))
        optimizer.zero_grad()
        value = loss(rows)
        value.backward()
        features.record(ctx, step, value, features.gradients(model), expected, documented)
        optimizer.step()


def _model(ctx: api.Context) -> tuple[Any, Any]:
    """The model, made as torchtitan's Trainer makes it, and its configuration."""
    import torch
    from torchtitan.experiments.transformers_modeling_backend import (
        HFTransformerModel,
        TitanModelConfig,
    )

    p = ctx.params
    folder = ctx.folder / "llama"
    folder.mkdir()
    described = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    config = HFTransformerModel.Config(model_config=TitanModelConfig())
    settings = SimpleNamespace(
        training=SimpleNamespace(seq_len=p.length),
        parallelism=SimpleNamespace(),
        loss=SimpleNamespace(),
        debug=SimpleNamespace(deterministic=False),
        hf_model=str(folder),
    )
    config.update_from_config(config=settings)
    config._attn_implementation = "eager"  # flex attention has no backward pass on a CPU
    with torch.device(p.made_on):
        model = config.build()
    if p.made_on == "meta":
        model.to_empty(device=ctx.device)
        for buffer in model.buffers():
            buffer.zero_()  # it could have any values; these make the run the same each time
    with torch.no_grad():
        model.init_states(buffer_device=None)
    return model, config
