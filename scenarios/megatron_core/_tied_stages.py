"""Two pipeline stages with one tied weight, of megatron-core's own parts, with two replicas each.

    first stage: word embeddings (tied), linear layers    last stage: linear layers, logits (tied)

The tie, the embedding, the output layer, the loss, the pipeline's schedule, the gradient buffers
and the reductions are upstream's; the linear layers between are torch's. Together they have as many
weights as the tied one, so that it is half of each stage's buffer, unless a scenario asks for more
layers. Ranks 0 and 1 hold the first stage, ranks 2 and 3 the last.

Shapes: tokens [batch, sequence], activations [sequence, batch, hidden]. Imports torch and upstream:
import it inside ``run``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import distributed, parallel_state, tensor_parallel
from megatron.core.enums import ModelType
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.transformer_config import TransformerConfig
from packaging.version import Version
from torch import Tensor, nn

from harness.bugs import api
from harness.detectors.replicas import replica_differences
from harness.detectors.tied import tied_differences

STAGES = 2


@dataclass(frozen=True)
class Shape:
    """The size of the model; ``vocabulary`` is a multiple of ``hidden``."""

    vocabulary: int = 16
    hidden: int = 8
    more_layers: int = 0

    @property
    def layers(self) -> int:
        """The number of linear layers, hidden by hidden. Without more layers, they have as many
        weights as the embedding."""
        return self.vocabulary // self.hidden + self.more_layers


@dataclass(frozen=True)
class Weights:
    """The initial weights of the complete model."""

    tied: Tensor
    """[vocabulary, hidden]"""
    linear: tuple[Tensor, ...]
    """[hidden, hidden] each, in the order of the stages."""


def weights(shape: Shape, seed: int) -> Weights:
    """Random weights, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    tied = torch.randn(shape.vocabulary, shape.hidden, generator=generator) * 0.1
    square = (STAGES * shape.layers, shape.hidden, shape.hidden)
    linear = torch.randn(*square, generator=generator) * 0.3
    return Weights(tied, tuple(linear))


def connect(ctx: api.Context) -> None:
    """Open the process groups: two pipeline stages, and as many replicas as the ranks allow."""
    dist.init_process_group(_backend(ctx))
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=STAGES)


def _backend(ctx: api.Context) -> str:
    # Before 0.6 the tied weights are made equal while they are still on the CPU.
    if ctx.lane is api.Lane.GPU and Version(ctx.pins["megatron-core"]) < Version("0.6"):
        return "cpu:gloo,cuda:nccl"
    return ctx.lane.backend


class Stage(LanguageModule):  # type: ignore[misc]
    """This rank's half of the model, in the form that upstream's pipeline expects."""

    def __init__(self, config: Any, shape: Shape, initial: Weights) -> None:
        super().__init__(config=config)
        number = parallel_state.get_pipeline_model_parallel_rank()
        self.pre_process, self.post_process = number == 0, number == STAGES - 1
        self.share_embeddings_and_output_weights = True
        self.model_type = ModelType.encoder_or_decoder
        if self.pre_process:
            words = tensor_parallel.VocabParallelEmbedding(
                shape.vocabulary, shape.hidden, init_method=_set_to(initial.tied), config=config
            )
            self.embedding: Any = nn.Module()
            self.embedding.word_embeddings = words
        matrices = initial.linear[number * shape.layers : (number + 1) * shape.layers]
        self.linear = nn.ParameterList([nn.Parameter(weight.clone()) for weight in matrices])
        if self.post_process:
            self.output_layer = tensor_parallel.ColumnParallelLinear(
                shape.hidden,
                shape.vocabulary,
                config=config,
                init_method=_set_to(initial.tied),
                bias=False,
                gather_output=False,
            )
        self.received: Tensor | None = None
        if hasattr(self, "setup_embeddings_and_output_layer"):
            self.setup_embeddings_and_output_layer()
        else:
            self.initialize_last_stage_with_word_embeddings()

    def set_input_tensor(self, received: Any) -> None:
        """Called by upstream's schedule with the activations of the stage before."""
        self.received = received[0] if isinstance(received, list) else received

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Activations [sequence, batch, hidden]; on the last stage, the losses of all tokens."""
        if self.pre_process:
            x = self.embedding.word_embeddings(tokens).transpose(0, 1).contiguous()
        else:
            x = self.received
        x = blocks(x, self.linear)
        if not self.post_process:
            return x
        losses: Tensor = self.compute_language_model_loss(labels, self.output_layer(x)[0])
        return losses


def blocks(x: Tensor, linear: Any) -> Tensor:
    """The layers between: each adds a nonlinear function of a linear one."""
    for weight in linear:
        x = x + F.gelu(F.linear(x, weight))
    return x


def _set_to(values: Tensor) -> Callable[[Tensor], Tensor]:
    def set_(weight: Tensor) -> Tensor:
        with torch.no_grad():
            return weight.copy_(values)

    return set_


def stage(ctx: api.Context, shape: Shape) -> Stage:
    """This rank's stage, on its device; upstream has made the tied copies equal."""
    config = TransformerConfig(
        num_layers=STAGES,
        hidden_size=shape.hidden,
        num_attention_heads=1,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=STAGES,
        pipeline_dtype=torch.float32,
        params_dtype=torch.float32,
    )
    module: Stage = Stage(config, shape, weights(shape, ctx.seed)).to(ctx.device)
    return module


def data_parallel(module: Stage, *, sharded: bool, overlap: bool) -> Any:
    """Upstream's DistributedDataParallel around a stage.

    ``sharded``: gradients are reduce-scattered, for the distributed optimizer. ``overlap``: during
    the backward pass.
    """
    options = {"use_distributed_optimizer": sharded, "overlap_grad_reduce": overlap}
    if hasattr(distributed, "DistributedDataParallelConfig"):
        settings = distributed.DistributedDataParallelConfig(grad_reduce_in_fp32=True, **options)
        parameters = inspect.signature(distributed.DistributedDataParallel.__init__).parameters
        if "data_parallel_group" in parameters:  # 0.7
            options = {"data_parallel_group": parallel_state.get_data_parallel_group()}
            return distributed.DistributedDataParallel(module.config, settings, module, **options)
        return distributed.DistributedDataParallel(module.config, settings, module)
    return distributed.DistributedDataParallel(
        module.config,
        module,
        data_parallel_group=parallel_state.get_data_parallel_group(),
        accumulate_allreduce_grads_in_fp32=True,
        **options,
    )


def zero_gradients(ddp: Any) -> None:
    """Set the gradient buffers to 0."""
    if Version(_release()) < Version("0.6"):
        ddp.zero_grad_buffer(True)
    else:
        ddp.zero_grad_buffer()


def _release() -> str:
    return metadata.version("megatron-core")


@dataclass(frozen=True)
class Layout:
    """Where a weight is in the release's buffers."""

    buffer: tuple[int, int]
    """Its elements in the buffer of all gradients: the first, and one past the last."""
    bucket: tuple[int, int]
    """The elements of the bucket that contains it, likewise."""
    owned: tuple[int, int]
    """The elements of the weight that this rank's optimizer updates."""


def layout(ddp: Any, weight: Any, *, sharded: bool) -> Layout:
    """The layout of one of this rank's weights; what the rank owns follows from upstream's shards.

    Without the distributed optimizer every rank owns all of its copy.
    """
    buffer = next(b for b in _buffers(ddp) if weight in b.param_index_map)
    start, end, number = buffer.param_index_map[weight]
    bucket = buffer.buckets[number]
    data = bucket.grad_data if hasattr(bucket, "grad_data") else bucket.data
    place = (bucket.offset, bucket.offset + data.numel())
    if not sharded:
        return Layout((start, end), place, (0, weight.numel()))
    group = parallel_state.get_data_parallel_group()
    shard = _shard_buffer()(data, dist.get_world_size(group))[dist.get_rank(group)]
    origin = weight.main_grad.storage_offset()
    low = shard.storage_offset() - origin
    clamped = (min(max(at, 0), weight.numel()) for at in (low, low + shard.numel()))
    return Layout((start, end), place, tuple(clamped))  # type: ignore[arg-type]


def others(ddp: Any, *, sharded: bool) -> dict[str, Tensor]:
    """By name, the elements of the other weights' gradients that this rank's optimizer uses."""
    tied = tied_weight(ddp)
    return {
        name: weight.main_grad.flatten()[slice(*layout(ddp, weight, sharded=sharded).owned)]
        for name, weight in ddp.module.named_parameters()
        if weight is not tied
    }


def _buffers(ddp: Any) -> list[Any]:
    return list(ddp.buffers if isinstance(ddp.buffers, list) else ddp.grad_buffers.values())


def _shard_buffer() -> Callable[[Tensor, int], list[Tensor]]:
    if hasattr(distributed, "grad_buffer"):
        return distributed.grad_buffer.shard_buffer
    return distributed.param_and_grad_buffer.shard_buffer


def tied_weight(ddp: Any) -> Any:
    """This rank's copy of the tied weight."""
    return ddp.module.shared_embedding_or_output_weight()


def apart(tensor: Tensor) -> float:
    """The greatest difference between this rank's tensor and the other copy's; 0 if they are
    bitwise equal. A collective call of the ranks in the embedding group."""
    differences = tied_differences([("", tensor, parallel_state.get_embedding_group())])
    return max((each.greatest for each in differences), default=0.0)


def drifted(ddp: Any) -> list[str]:
    """The parameters whose data-parallel replicas are not bitwise equal; a collective call."""
    group = parallel_state.get_data_parallel_group()
    return [each.name for each in replica_differences(ddp.module.named_parameters(), group)]
