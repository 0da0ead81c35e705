"""A training of megatron-core's parts on several ranks: schedule, gradient buffers, optimizer.

Imports torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.bugs import api


def config(ctx: api.Context, **settings: Any) -> TransformerConfig:
    """Connect the ranks, which share each layer and, if there are several, the sequence."""
    dist.init_process_group(ctx.lane.backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ctx.world_size)
    return _config(
        tensor_model_parallel_size=ctx.world_size, sequence_parallel=ctx.world_size > 1, **settings
    )


def copies(ctx: api.Context, *, context: bool, **settings: Any) -> TransformerConfig:
    """Connect the ranks, each with a copy of the model; with ``context``, they share sequences."""
    dist.init_process_group(ctx.lane.backend)
    ranks = ctx.world_size if context else 1
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    return _config(context_parallel_size=ranks, **settings)


def _config(**settings: Any) -> TransformerConfig:
    return TransformerConfig(
        num_layers=1,
        use_cpu_initialization=True,
        add_bias_linear=False,
        finalize_model_grads_func=finalize_model_grads,
        **settings,
    )


class Model(MegatronModule):  # type: ignore[misc]
    """A model with what upstream's schedule expects of it."""

    model_type = ModelType.encoder_or_decoder

    def set_input_tensor(self, _: Any) -> None:
        """Called by upstream's schedule; there is no stage before."""


class Trainer:
    """Upstream's schedule, gradient buffers and SGD over a model."""

    def __init__(self, module: Model, lr: float, clipping: float = 0.0) -> None:
        self.ddp = DistributedDataParallel(module.config, DistributedDataParallelConfig(), module)
        settings = OptimizerConfig(
            optimizer="sgd", lr=lr, sgd_momentum=0.0, weight_decay=0.0, clip_grad=clipping
        )
        self.optimizer = get_megatron_optimizer(settings, [self.ddp])

    def backward(self, forward: Callable[..., Any], batch: Any, shape: tuple[int, int]) -> None:
        """Compute the gradients of one micro-batch [length, rows], reduced over the ranks.

        ``forward`` gets an iterator over the batch and the model, as upstream's schedule wants.
        """
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([batch]),
            model=self.ddp,
            num_microbatches=1,
            seq_length=shape[0],
            micro_batch_size=shape[1],
            forward_only=False,
        )

    def step(self) -> float:
        """Clip and step; upstream's gradient norm, 0 if it computes none."""
        _, norm, _ = self.optimizer.step()
        return float(norm or 0.0)
