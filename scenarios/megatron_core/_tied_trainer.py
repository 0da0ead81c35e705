"""Upstream's training of two pipeline stages with a tied weight, on random tokens.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.bugs import api
from scenarios.megatron_core._tied_stages import (
    Shape,
    connect,
    data_parallel,
    stage,
    tied_weight,
    zero_gradients,
)


@dataclass(frozen=True)
class Batch:
    """Tokens and labels of a complete step, [micro-batches, replicas * size, sequence]."""

    tokens: Tensor
    labels: Tensor

    def of_replica(self, replica: int, size: int) -> Batch:
        """The sequences on which one data-parallel replica trains."""
        mine = slice(replica * size, (replica + 1) * size)
        return replace(self, tokens=self.tokens[:, mine], labels=self.labels[:, mine])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.tokens, self.labels, strict=True)


def batch(shape: Shape, size: tuple[int, int, int], seed: int, device: torch.device) -> Batch:
    """Random tokens and their successors; ``size``: micro-batches, sequences in each, length."""
    generator = torch.Generator().manual_seed(seed)
    micro_batches, sequences, length = size
    tokens = torch.randint(
        shape.vocabulary, (micro_batches, sequences, length + 1), generator=generator
    )
    return Batch(tokens[..., :-1].contiguous().to(device), tokens[..., 1:].contiguous().to(device))


class Trainer:
    """Upstream's pipeline schedule, gradient buffers and distributed optimizer over one stage."""

    def __init__(self, ctx: api.Context, shape: Shape, lr: float) -> None:
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        connect(ctx)
        module = stage(ctx, shape)
        self.ddp = data_parallel(module, sharded=True, overlap=False)
        self.own: Tensor | None = None
        """This rank's own gradient of the tied weight in the last step, before any reduction."""
        self._keep_own_gradient()
        module.config.finalize_model_grads_func = finalize_model_grads
        module.config.no_sync_func = self.ddp.no_sync
        settings = OptimizerConfig(
            optimizer="adam", lr=lr, weight_decay=0.0, clip_grad=0.0, use_distributed_optimizer=True
        )
        self.optimizer = _optimizer(get_megatron_optimizer, settings, self.ddp)

    def _keep_own_gradient(self) -> None:
        finish = self.ddp.finish_grad_sync

        def keeping(*args: Any, **kwargs: Any) -> Any:
            self.own = tied_weight(self.ddp).main_grad.clone()
            return finish(*args, **kwargs)

        self.ddp.finish_grad_sync = keeping

    def step(self, data: Batch) -> float | None:
        """One training step on this replica's part; its mean loss in nats, on the last stage."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        micro_batches, size, length = data.tokens.shape
        zero_gradients(self.ddp)
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=_forward,
            data_iterator=iter(data),
            model=self.ddp,
            num_microbatches=micro_batches,
            seq_length=length,
            micro_batch_size=size,
            forward_only=False,
        )
        self.optimizer.step()
        return sum(float(x["loss"]) for x in losses) / micro_batches if losses else None


def _forward(data: Iterator[tuple[Tensor, Tensor]], model: Any) -> Any:
    def mean(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = losses.mean()
        return loss, {"loss": loss.detach().clone()}  # the schedule divides the loss in place

    return model(*next(data)), mean


def _optimizer(make: Callable[..., Any], settings: Any, ddp: Any) -> Any:
    if "no_weight_decay_cond" in inspect.signature(make).parameters:
        return make(settings, [ddp], no_weight_decay_cond=None)
    return make(settings, [ddp])
