"""A LLaMA of one layer under accelerate's tensor parallelism.

Imports torch, transformers and accelerate: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

from harness.bugs import api
from harness.detectors.arithmetic import projection

ROWS, LENGTH, VOCABULARY = 4, 16, 32

SPLIT = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("self_attn", ColwiseParallel)),
    "o_proj": ("self_attn", RowwiseParallel),
    **dict.fromkeys(("gate_proj", "up_proj"), ("mlp", ColwiseParallel)),
    "down_proj": ("mlp", RowwiseParallel),
}
"""Where each linear layer of a block is, and how it is split."""


class OnCPU(ParallelismConfig):  # type: ignore[misc]
    """accelerate's configuration without its refusal of CPUs."""

    def _validate_accelerator(self, accelerator: Any) -> None:
        if self.total_size != accelerator.num_processes:
            raise api.Inconclusive(f"{accelerator.num_processes} processes for {self.total_size}")


def train(ctx: api.Context) -> None:
    """Prepare the model and SGD, train, and record each step."""
    p = ctx.params
    with ctx.phase("init"):
        kind = OnCPU if ctx.lane is api.Lane.CPU else ParallelismConfig
        accelerator = Accelerator(
            cpu=ctx.lane is api.Lane.CPU, parallelism_config=kind(tp_size=ctx.world_size)
        )
        model = _llama().to(ctx.device)
        plain = deepcopy(model)
        mesh = accelerator.torch_device_mesh["tp"]
        if p.sharded == "linear":
            parts = {f"model.layers.*.{where}.{n}": how() for n, (where, how) in SPLIT.items()}
            parallelize_module(model, mesh, parts)
        model._tp_size, model._device_mesh = ctx.world_size, mesh  # transformers' loading does it
        before = dict(model.named_parameters())
        # On GPUs, SGD steps all parameters at once, and torch refuses a mixture with DTensors.
        sgd_of = partial(torch.optim.SGD, lr=p.lr, foreach=False)
        if p.optimizer_first:
            sgd = sgd_of(model.parameters())
            model, optimizer = accelerator.prepare(model, sgd)
        else:
            model = accelerator.prepare(model)
            sgd = sgd_of(model.parameters())
            optimizer = accelerator.prepare(sgd)
    after = dict(model.named_parameters())
    trained = {id(one) for group in sgd.param_groups for one in group["params"]}
    ctx.record(
        "prepared",
        first=p.optimizer_first,
        sharded=[name for name, one in before.items() if isinstance(one, DTensor)],
        replaced=[name for name, one in after.items() if one is not before[name]],
        owned=[name for name, one in after.items() if id(one) in trained],
    )
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator).to(ctx.device)
    for step in range(1, p.steps + 1):
        weights = _whole(model)
        loss = _of(model, tokens)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        facts = _facts(plain, tokens, weights, _whole(model), p.lr)
        ctx.record("step", step, loss=float(_full(loss)), **facts)


def _llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.float32)


def _of(model: nn.Module, tokens: Tensor) -> Any:
    """The loss of a model on these tokens."""
    return model(input_ids=tokens, labels=tokens).loss


def _full(tensor: Any) -> Tensor:
    """A tensor that no longer is a DTensor."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return torch.as_tensor(whole).detach()


def _whole(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights, joined from the ranks' parts."""
    return {name: _full(weight).clone() for name, weight in model.named_parameters()}


def _facts(
    plain: nn.Module,
    tokens: Tensor,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    rate: float,
) -> dict[str, Any]:
    """How far a step took each parameter, in gradients that plain torch has at the same weights."""
    plain.load_state_dict(dict(before), strict=False)
    plain.zero_grad()
    loss = _of(plain, tokens)
    loss.backward()
    projections = {
        name: projection(
            ((before[name] - after[name]) / rate).double().flatten(),
            (torch.zeros_like(p) if p.grad is None else p.grad).double().flatten(),
        )
        for name, p in plain.named_parameters()
    }
    return {
        "reference_loss": float(loss.detach()),
        "gradient": {name: one.right for name, one in projections.items()},
        "ratio": {name: one.ratio for name, one in projections.items()},
        "aside": {name: one.beside / one.right for name, one in projections.items()},
    }
