"""megatron-core's MoE router in a training with sequence or data parallelism, beside plain torch.

A model of the router alone: its probabilities are the output, gathered over the ranks. The router
and its auxiliary loss, the schedule, the gradient buffers and their reductions, and the optimizer
are upstream's. Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from harness.bugs import api
from scenarios.megatron_core import _training as training
from scenarios.megatron_core._moe_shares import EXPERTS, HIDDEN

LENGTH, ROWS, TOP = 16, 2, 2
PADDED = (4, 2)
"""How many tokens at the end of each row are padding, if a mask is given."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch of complete sequences."""

    inputs: Tensor
    """[length, rows, hidden]"""
    values: Tensor
    """[length, rows, experts]: a token's loss is the sum of its probabilities times these."""
    padded: Tensor
    """[length, rows]: whether a token is padding."""

    def share(self, rank: int, ranks: int, dimension: int = 1) -> Batch:
        """The rows of a data-parallel rank, or, of dimension 0, the tokens of a context-parallel
        one."""
        parts = (self.inputs, self.values, self.padded)
        return Batch(*(part.chunk(ranks, dimension)[rank].contiguous() for part in parts))


class Routed(training.Model):
    """The router: its probabilities for all tokens of the sequence, [length, rows, experts]."""

    def __init__(self, config: Any, weight: Tensor) -> None:
        super().__init__(config)
        self.router = TopKRouter(config=config, **_groups())
        self.router.set_layer_number(1)
        with torch.no_grad():
            self.router.weight.copy_(weight)

    def forward(self, inputs: Tensor, padded: Tensor | None) -> Tensor:
        mask = {} if padded is None else {"padding_mask": padded}
        probabilities = self.router(inputs, **mask)[0].view(*inputs.shape[:2], EXPERTS)
        if not self.config.sequence_parallel:
            return probabilities  # type: ignore[no-any-return]
        # All ranks compute the loss of the complete sequence, as behind an output layer.
        gathered: Tensor = gather_from_sequence_parallel_region(
            probabilities, tensor_parallel_output_grad=False
        )
        return gathered


def _groups() -> dict[str, Any]:
    """The router's process groups, in releases that want them."""
    for keyword, name in (
        ("pg_collection", "get_default_pg_collection"),
        ("model_comm_pgs", "get_default_model_comm_pgs"),
    ):
        if hasattr(moe_utils, name):
            return {keyword: getattr(moe_utils, name)()}
    return {}


def trained(ctx: api.Context, balancing: str, *, copies: bool, context: bool = False) -> Routed:
    """The router with random weights; the ranks are connected."""
    connect: Any = partial(training.copies, context=context) if copies else training.config
    config = connect(
        ctx,
        hidden_size=HIDDEN,
        num_attention_heads=ctx.world_size,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOP,
        moe_router_load_balancing_type=balancing,
        moe_aux_loss_coeff=ctx.params.times * ctx.params.coefficient,
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=ctx.params.per_token,
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    return Routed(config, torch.randn(EXPERTS, HIDDEN, generator=generator)).to(ctx.device)


def forward(data: Iterator[Batch], model: Any) -> Any:
    """The probabilities and the function of their loss, a sum or a mean over tokens as upstream
    wants."""
    batch = next(data)
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    inputs, padded = (part.chunk(ranks)[rank] for part in (batch.inputs, batch.padded))
    probabilities = model(inputs, padded if batch.padded.any() else None)

    def loss(output: Tensor) -> Any:
        losses = (output * batch.values).sum(-1)[~batch.padded]
        count = torch.tensor(losses.numel(), dtype=torch.int, device=losses.device)
        logged = {"loss": losses.detach().mean()}
        if model.module.config.calculate_per_token_loss:
            return losses.sum(), count, logged
        # Upstream multiplies by the ranks that share a sequence: a mean over all its tokens.
        return losses.mean() / parallel_state.get_context_parallel_world_size(), logged

    return probabilities, loss


def train(
    ctx: api.Context, balancing: str = "aux_loss", *, copies: bool = False, context: bool = False
) -> None:
    """Train the router; record what each step applied, and plain torch's two gradients.

    The ranks share each sequence, or, with ``copies``, have different rows, or, with ``context``,
    are context-parallel. ``balancing`` is upstream's name of the auxiliary loss.
    """
    p = ctx.params
    copies = copies or context
    module = trained(ctx, balancing, copies=copies, context=context)
    trainer, weight = training.Trainer(module, p.lr), module.router.weight
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    padded = torch.zeros(LENGTH, ROWS, dtype=torch.bool)
    for row, count in enumerate(PADDED if p.masked else ()):
        padded[LENGTH - count :, row] = True
    for step in range(1, p.steps + 1):
        shape = (LENGTH, ROWS)
        batch = Batch(
            torch.randn(*shape, HIDDEN, generator=generator).to(ctx.device),
            torch.randn(*shape, EXPERTS, generator=generator).to(ctx.device),
            padded.to(ctx.device),
        )
        before = weight.detach().clone()
        task, auxiliary = gradients(before, batch, p.coefficient)
        if balancing == "seq_aux_loss":  # the mean of what balances each row
            rows = (batch.share(row, ROWS) for row in range(ROWS))
            each = [gradients(before, row, p.coefficient)[1] for row in rows]
            auxiliary = torch.stack(each).mean(0)
        share = batch.share(ctx.rank, ctx.world_size, 1 - context) if copies else batch
        trainer.backward(forward, share, (LENGTH, share.inputs.shape[1]))
        trainer.step()
        ctx.record(
            "step",
            step,
            task=task.flatten().tolist(),
            auxiliary=auxiliary.flatten().tolist(),
            applied=((before - weight.detach()) / p.lr).flatten().tolist(),
            shared=module.config.sequence_parallel,
        )


def gradients(weight: Tensor, batch: Batch, coefficient: float) -> tuple[Tensor, Tensor]:
    """The gradients of the mean loss of a token, and of the auxiliary loss, in plain torch.

    The auxiliary loss is coefficient * experts * sum(f * P) over the experts: f is the fraction of
    choices that fell on an expert, P its mean probability; padding does not count.
    """
    leaf = weight.clone().requires_grad_()
    counted = ~batch.padded
    logits = (batch.inputs @ leaf.T)[counted]
    chosen = logits.topk(TOP, -1)
    weights = torch.zeros_like(logits).scatter(-1, chosen.indices, chosen.values.softmax(-1))
    task = (weights * batch.values[counted]).sum(-1).mean()
    fractions = torch.zeros_like(logits).scatter(-1, chosen.indices, 1.0 / TOP).mean(0)
    balance = coefficient * EXPERTS * (fractions * logits.softmax(-1).mean(0)).sum()
    return (
        torch.autograd.grad(task, leaf, retain_graph=True)[0],
        torch.autograd.grad(balance, leaf)[0],
    )
