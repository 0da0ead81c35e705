"""A small GPT of megatron-core's own tensor-parallel layers, as a DeepSpeed pipeline.

The layers have the order that Megatron-DeepSpeed gives them. So the first transformer block is
layer 3, and a checkpoint has the file names of the reports:

    0 a function, 1 embedding (tied), 2 transpose, 3.. blocks, then transpose, norm, head (tied)

Shapes: tokens [batch, sequence], activations [sequence, batch, hidden] inside the blocks. Imports
torch and upstream: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from megatron.core import parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, nn

from harness.bugs import api
from harness.detectors.replicas import replicated_parameters
from scenarios.common import bf16
from scenarios.common.stepped import Plain
from scenarios.deepspeed.bf16_clip.fused import layer_norm

Optimizer = Callable[[Iterable[nn.Parameter]], Any]


LAYER_NORMS = tuple(
    f"{norm}.{part}"
    for norm in ("input_layernorm", "post_attention_layernorm")
    for part in ("weight", "bias")
)
"""The keys that the upstream test compares, in order."""


@dataclass(frozen=True)
class Shape:
    """The size of the model; ``init`` is the standard deviation of the initial weights."""

    hidden: int = 32
    blocks: int = 2
    heads: int = 4
    vocabulary: int = 64
    sequence: int = 16
    init: float = 0.02


def parallel_config(tensor_parallel_size: int) -> ModelParallelConfig:
    """fp32 weights, drawn on the CPU and then split: the same model for every number of ranks."""
    return ModelParallelConfig(
        tensor_model_parallel_size=tensor_parallel_size,
        params_dtype=torch.float32,
        use_cpu_initialization=True,
        perform_initialization=True,
    )


def layers(shape: Shape, config: ModelParallelConfig, lane: api.Lane) -> list[Any]:
    """The layers to give to DeepSpeed's PipelineModule; see fused.py for ``lane``."""
    tied = partial(TiedLayerSpec, "embed", Embedding, shape, config, tied_weight_attr="tied_weight")
    blocks = [LayerSpec(Block, shape, config, lane) for _ in range(shape.blocks)]
    norm = LayerSpec(layer_norm(lane), shape.hidden)
    return [_as_is, tied(), _transpose, *blocks, _transpose, norm, tied(forward_fn=_logits)]


def engine(ctx: api.Context, optimizer: Optimizer, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """DeepSpeed's pipeline engine and BF16_Optimizer over the model; all ranks are tensor-parallel.

    ``optimizer`` gets the parameters and makes torch's optimizer; ``config`` is added to the config
    that selects bf16. Returns the engine and the process group of the replicas.
    """
    width = ctx.world_size
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=width)
    torch.manual_seed(ctx.seed)
    module = deepspeed.PipelineModule(
        layers(Shape(), parallel_config(width), ctx.lane),
        topology=PipeModelDataParallelTopology(num_pp=1, num_mp=width, num_dp=1),
        loss_fn=loss,
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    pipeline, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer(module.parameters()),
        config={**bf16.config(ctx.pins), **config},
    )
    group = parallel_state.get_tensor_model_parallel_group()
    theirs = dist.get_process_group_ranks(pipeline.grid.get_slice_parallel_group())
    if not isinstance(pipeline.optimizer, BF16_Optimizer):
        raise api.Inconclusive(
            f"DeepSpeed took another optimizer: {type(pipeline.optimizer).__name__}"
        )
    if theirs != dist.get_process_group_ranks(group):
        raise api.Inconclusive(
            "DeepSpeed's grid and parallel_state disagree on the tensor-parallel group"
        )
    return pipeline, group


def plainly(pipeline: Any, group: Any, data: tuple[Tensor, Tensor]) -> Plain:
    """What plain autograd computes for the present weights; a collective call of the ranks.

    The norm counts a replicated parameter once: on rank 0 of ``group``.
    """
    tokens, labels = data
    parameters = dict(pipeline.module.named_parameters())
    value = loss(pipeline.module(tokens), labels)
    tensors = torch.autograd.grad(value, list(parameters.values()))
    gradients = {name: gradient.float() for name, gradient in zip(parameters, tensors, strict=True)}
    replicated = {name for name, _ in replicated_parameters(pipeline.module)}
    counted = [g for n, g in gradients.items() if n not in replicated or not dist.get_rank(group)]
    square = torch.stack([gradient.square().sum() for gradient in counted]).sum()
    dist.all_reduce(square, group=group)
    return Plain(float(value.detach()), float(square.sqrt()), gradients)


def config(size: int, clipping: float) -> dict[str, Any]:
    """DeepSpeed's config for one micro-batch of ``size`` sequences in a step."""
    return {
        "train_micro_batch_size_per_gpu": size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": clipping,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
    }


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy in nats; logits [batch, sequence, vocabulary / ranks]."""
    loss = tensor_parallel.vocab_parallel_cross_entropy(logits.float(), labels)
    return loss.mean()  # type: ignore[no-any-return]


def batch(shape: Shape, size: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random tokens and their successors, [size, sequence], the same on each rank."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(shape.vocabulary, (size, shape.sequence + 1), generator=generator)
    return tokens[:, :-1].contiguous().to(device), tokens[:, 1:].contiguous().to(device)


class Embedding(nn.Module):
    """Word embeddings, split over the vocabulary, plus replicated position embeddings."""

    def __init__(self, shape: Shape, config: ModelParallelConfig) -> None:
        super().__init__()
        init = _normal(shape.init)
        self.word_embeddings = _saved_by_old_releases(
            tensor_parallel.VocabParallelEmbedding(
                shape.vocabulary, shape.hidden, init_method=init, config=config
            )
        )
        self.position_embeddings = nn.Embedding(shape.sequence, shape.hidden)
        init(self.position_embeddings.weight)

    @property
    def tied_weight(self) -> Tensor:
        """The weight that DeepSpeed keeps equal between the embedding and the head."""
        return cast("Tensor", self.word_embeddings.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.word_embeddings(tokens)
        return embedded + self.position_embeddings(positions)


class Attention(nn.Module):
    """Causal self-attention; the heads are split over the ranks."""

    def __init__(self, shape: Shape, config: ModelParallelConfig) -> None:
        super().__init__()
        self.heads = shape.heads // config.tensor_model_parallel_size
        self.width = shape.hidden // shape.heads
        self.query_key_value = _column(shape.hidden, 3 * shape.hidden, shape, config)
        self.dense = _row(shape.hidden, shape.hidden, shape, config)

    def forward(self, x: Tensor) -> Tensor:
        sequence, size, _ = x.shape
        mixed, _ = self.query_key_value(x)
        # Heads outermost: a rank holds complete heads, so two ranks compute what one would.
        mixed = mixed.view(sequence, size, self.heads, 3 * self.width).permute(1, 2, 0, 3)
        query, key, value = mixed.split(self.width, dim=-1)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        context = context.permute(2, 0, 1, 3).reshape(sequence, size, self.heads * self.width)
        out: Tensor = self.dense(context)[0]
        return out


class MLP(nn.Module):
    """Two linear layers around a GELU; the inner width is split over the ranks."""

    def __init__(self, shape: Shape, config: ModelParallelConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = _column(shape.hidden, 4 * shape.hidden, shape, config)
        self.dense_4h_to_h = _row(4 * shape.hidden, shape.hidden, shape, config)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)[0]))[0]
        return out


class Block(nn.Module):
    """A pre-norm transformer block; its layer norms and output biases are replicated."""

    def __init__(self, shape: Shape, config: ModelParallelConfig, lane: api.Lane) -> None:
        super().__init__()
        self.input_layernorm = layer_norm(lane)(shape.hidden)
        self.self_attention = Attention(shape, config)
        self.post_attention_layernorm = layer_norm(lane)(shape.hidden)
        self.mlp = MLP(shape, config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


def _as_is(tokens: Tensor) -> Tensor:
    return tokens


def _transpose(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()


def _logits(embedding: Embedding, x: Tensor) -> Tensor:
    x = tensor_parallel.copy_to_tensor_model_parallel_region(x)
    return F.linear(x, embedding.tied_weight)


def _column(inner: int, outer: int, shape: Shape, config: ModelParallelConfig) -> nn.Module:
    return _saved_by_old_releases(
        tensor_parallel.ColumnParallelLinear(
            inner, outer, config=config, init_method=_normal(shape.init), gather_output=False
        )
    )


def _row(inner: int, outer: int, shape: Shape, config: ModelParallelConfig) -> nn.Module:
    return _saved_by_old_releases(
        tensor_parallel.RowParallelLinear(
            inner,
            outer,
            config=config,
            init_method=_normal(shape.init),
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )
    )


def _normal(deviation: float) -> Callable[[Tensor], Tensor]:
    return partial(nn.init.normal_, mean=0.0, std=deviation)


def _saved_by_old_releases(layer: nn.Module) -> nn.Module:
    """Leave megatron-core's empty ``_extra_state`` out: DeepSpeed 0.7 clones everything it
    saves."""

    def drop_empty(_: nn.Module, state: dict[str, Any], __: str, ___: Any) -> None:
        for name in [name for name, value in state.items() if value is None]:
            del state[name]

    layer._register_state_dict_hook(drop_empty)
    return layer


def unlike_norms(checkpoint: Path) -> dict[str, Any]:
    """Compare the files of the two ranks key by key, as upstream's test does. Returns the failures,
    and the number of keys compared."""
    compared, failures = 0, []
    for rank_0_file in sorted(checkpoint.glob("layer_*-model_00-model_states.pt")):
        pair = [
            rank_0_file,
            rank_0_file.with_name(rank_0_file.name.replace("model_00", "model_01")),
        ]
        ours, theirs = (torch.load(f, map_location="cpu", weights_only=True) for f in pair)
        for key in (key for key in LAYER_NORMS if key in ours):
            compared += 1
            if not torch.equal(ours[key], theirs[key]):
                files = [file.name for file in pair]
                failures.append({"key": key, "checkpoint": checkpoint.name, "files": files})
    return {"compared": compared, "failures": failures}
