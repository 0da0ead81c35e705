"""megatron-core's self-attention with learnable sinks, on ranks that share the heads.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor

from harness.bugs import api
from scenarios.megatron_core import _training as training

HIDDEN, HEADS, LENGTH, ROWS = 16, 4, 8, 2
SINKS = "softmax_offset"


class Attention(training.Model):
    """One self-attention, on this rank's part of the sequence."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        parts = SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=DotProductAttention,
            linear_proj=RowParallelLinear,
        )
        causal = AttnMaskType.causal
        self.attention = SelfAttention(config, parts, layer_number=1, attn_mask_type=causal)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Inputs and outputs are [part of length, rows, hidden]."""
        outputs: Tensor = self.attention(inputs, mask)[0]
        return outputs


def train(ctx: api.Context) -> None:
    """Train with SGD and clipping; record upstream's norm and the parts of the right norm."""
    p = ctx.params
    torch.manual_seed(ctx.seed)
    config = training.config(
        ctx,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        softmax_type="learnable" if p.sinks else "vanilla",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        masked_softmax_fusion=False,
        init_method=_init,
        output_layer_init_method=_init,
    )
    module = Attention(config).to(ctx.device)
    for name, weight in module.named_parameters():
        if name.endswith(SINKS) and p.marked:
            weight.tensor_model_parallel = True
        weight.requires_grad_(name.endswith(SINKS) or not p.only_sinks)
    trainer = training.Trainer(module, p.lr, p.clipping)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=ctx.device).triu(1)
    generator = torch.Generator().manual_seed(ctx.seed + 1)

    def forward(data: Iterator[Tensor], model: Any) -> Any:
        inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in next(data))

        def loss(outputs: Tensor) -> Any:
            error = (outputs - labels).square().mean()
            return error, {"loss": error.detach()}

        return model(inputs, mask), loss

    for step in range(1, p.steps + 1):
        batch = torch.randn(2, LENGTH, ROWS, HIDDEN, generator=generator).to(ctx.device)
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        trainer.backward(forward, batch, (LENGTH, ROWS))
        local_norm = _norm([weight.main_grad for weight in trained])  # the step clips in place
        sinks = _norm([w.main_grad for n, w in module.named_parameters() if n.endswith(SINKS)])
        before = [weight.detach().clone() for weight in trained]
        norm = trainer.step()
        updates = [(b - a.detach()) / p.lr for b, a in zip(before, trained, strict=True)]
        ctx.record("step", step, norm=norm, own=local_norm, sinks=sinks, applied=_norm(updates))


def _init(weight: Tensor) -> Tensor:
    """The same values whatever was drawn before, so that one rank gets the values of two."""
    generator = torch.Generator().manual_seed(sum(weight.shape))
    with torch.no_grad():
        return weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.cat([each.flatten() for each in tensors]).norm()) if tensors else 0.0
