"""A small language model in five layers, tied first and last, as a DeepSpeed pipeline.

    0 embedding (tied), 1 to 3 blocks, 4 head: the embedding's own weight (tied)

The embedding contains a layer norm, as in BLOOM-176B, so that the parameters have the names of the
report: ``tied_modules.embed.word_embeddings.weight`` and ``.norm.weight``. The head uses the weight
alone, but the last stage builds the complete embedding, as DeepSpeed does. Of two stages, the first
holds layers 0 and 1, the second layers 2 to 4.

Shapes: tokens [batch, sequence], activations [batch, sequence, hidden], logits [batch, sequence,
vocabulary]. Imports torch and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from packaging.version import Version
from torch import Tensor, nn

from harness.bugs import api
from harness.detectors.replicas import replica_differences
from harness.detectors.tied import tied_copies, tied_differences
from scenarios.common import bf16, copies, stepped


@dataclass(frozen=True)
class Shape:
    """The size of the model, and what the tied module contains besides its weight."""

    hidden: int = 32
    vocabulary: int = 64
    sequence: int = 16
    init: float = 0.1
    """The standard deviation of the embedding's initial weights."""
    norm: bool = True
    """A layer norm inside the embedding; only the first stage uses it."""
    head_bias: bool = False
    """A bias of the logits in the tied module; only the last stage uses it."""


@dataclass(frozen=True)
class Training:
    """How the model is trained: with AdamW, on the same micro-batches in every step."""

    lr: float = 1e-2
    weight_decay: float = 0.0
    clipping: float = 0.0
    """The greatest global gradient norm; 0 switches clipping off."""
    batch: int = 4
    micro_batches: int = 2
    bf16: bool = True
    """Whether to train bf16 weights with BF16_Optimizer; otherwise fp32 weights without it."""


SHAPE = Shape()

TIED = "tied_modules.embed."


class WordEmbeddings(nn.Embedding):
    """Word embeddings and the norm after them, in one module, as in BLOOM-176B."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.vocabulary, shape.hidden)
        nn.init.normal_(self.weight, std=shape.init)
        self.norm: nn.Module = nn.LayerNorm(shape.hidden) if shape.norm else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.norm(super().forward(tokens))
        return embedded


class Embedding(nn.Module):
    """The tied module: the first stage embeds with it, the last one computes logits with it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word_embeddings = WordEmbeddings(shape)
        self.head_bias = nn.Parameter(torch.zeros(shape.vocabulary)) if shape.head_bias else None

    @property
    def tied_weight(self) -> Tensor:
        """The weight that DeepSpeed keeps equal."""
        return self.word_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.word_embeddings(tokens)
        return embedded


class Block(nn.Module):
    """A residual MLP that also sees the token before."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden)
        self.mix = nn.Linear(2 * shape.hidden, 2 * shape.hidden)
        self.out = nn.Linear(2 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        before = F.pad(y, (0, 0, 1, 0))[:, :-1]
        out: Tensor = self.out(F.gelu(self.mix(torch.cat([y, before], dim=-1))))
        return x + out


def logits(embedding: Embedding, x: Tensor) -> Tensor:
    """The head, which uses the tied weight again."""
    return F.linear(x, embedding.tied_weight, embedding.head_bias)


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy in nats."""
    return F.cross_entropy(scores.float().flatten(0, 1), labels.flatten())


def layers(shape: Shape) -> list[Any]:
    """The layers to give to DeepSpeed's PipelineModule."""
    tied = partial(TiedLayerSpec, "embed", Embedding, shape, tied_weight_attr="tied_weight")
    return [tied(), *(LayerSpec(Block, shape) for _ in range(3)), tied(forward_fn=logits)]


def engine(ctx: api.Context, shape: Shape, training: Training) -> Any:
    """DeepSpeed's pipeline engine, one stage on each rank; any number gives the same model."""
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    module = deepspeed.PipelineModule(
        layers(shape),
        topology=PipeModelDataParallelTopology(num_pp=ctx.world_size, num_mp=1, num_dp=1),
        loss_fn=loss,
        partition_method="uniform",
        activation_checkpoint_interval=0,
        seed_layers=True,
        base_seed=ctx.seed + 1,
    )
    pipeline, *_ = deepspeed.initialize(
        model=module,
        optimizer=_optimizer(training, module.parameters()),
        config=_config(training, ctx.pins),
    )
    if isinstance(pipeline.optimizer, BF16_Optimizer) is not training.bf16:
        raise api.Inconclusive(
            f"DeepSpeed took another optimizer: {type(pipeline.optimizer).__name__}"
        )
    return pipeline


def _optimizer(training: Training, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=training.lr, weight_decay=training.weight_decay)


def _config(training: Training, pins: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": training.batch,
        "gradient_accumulation_steps": training.micro_batches,
        "gradient_clipping": training.clipping,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
    }
    if training.bf16:
        config |= bf16.config(pins)
    return config


class Trainer:
    """Trains the model; records each step."""

    def __init__(self, ctx: api.Context, training: Training, shape: Shape = SHAPE) -> None:
        with ctx.phase("init"):
            pipeline = engine(ctx, shape, training)
        self.ctx, self.engine, self.training, self.shape = ctx, pipeline, training, shape
        self.data = _data(shape, training, ctx.seed, ctx.device)
        self.gradients = TiedGradients(pipeline)
        self.watch = stepped.Watch(pipeline, partial(_optimizer, training))

    def step(self, number: int) -> None:
        """One step over all micro-batches; number counts from 1."""
        self.gradients.forget()
        self.watch.begin()
        plain, own_gradients = plainly(self.ctx, self.engine, self.shape, self.data)
        mean = float(self.engine.train_batch(iter(self.data)))
        self.ctx.record(
            "step",
            number,
            loss=mean,
            grad_norm=_norm(self.engine.get_global_grad_norm()),
            drift=drift(self.engine),
            **self.gradients.facts(),
            **self.watch.facts(plain),
            got_of_own=self.watch.shares(own_gradients),
        )

    def copies(self) -> dict[str, dict[str, float]]:
        """The greatest differences between the tied copies now, for ``tied_resume_norm.resume``."""
        masters = drift(self.engine, masters=self.training.bf16)
        return {"tied": drift(self.engine), "tied_masters": masters}


def drift(pipeline: Any, masters: bool = False) -> dict[str, float]:
    """The greatest difference between the copies of each tied weight; equal copies are left out."""
    return copies.facts(tied_differences(tied_copies(pipeline.module, masters)))


class TiedGradients:
    """Watches which gradient of the tied weight a stage computes, and which one it applies.

    A hook of autograd sees the stage's own gradient of each micro-batch. A hook of the optimizer
    sees what it is about to use: the fp32 buffer of BF16_Optimizer, or ``.grad`` if there is none.
    """

    def __init__(self, pipeline: Any) -> None:
        self.weight: Any = None
        if "embed" in pipeline.module.tied_modules:
            self.weight = pipeline.module.tied_modules["embed"].tied_weight
        self.copies = list(tied_copies(pipeline.module))
        self.own: Tensor | None = None
        self.applied: Tensor | None = None
        self.left: Tensor | None = None
        if self.weight is None:
            return
        self.weight.register_hook(self._add)
        base = getattr(pipeline.optimizer, "optimizer", pipeline.optimizer)
        base.register_step_pre_hook(self._look)

    def forget(self) -> None:
        """Start a step."""
        self.own = self.applied = self.left = None

    def _add(self, gradient: Tensor) -> None:
        self.own = gradient.float() + (0 if self.own is None else self.own)

    def _look(self, *_: Any) -> None:
        buffer = getattr(self.weight, "_hp_grad", None)
        gradient = self.weight.grad if buffer is None else buffer
        self.applied = gradient.detach().float().reshape(self.weight.shape).clone()
        self.left = None if buffer is None else self.weight.grad.detach().clone()

    def facts(self) -> dict[str, Any]:
        """The norms of the stage's own gradient, of the sum over stages, and of the applied one.

        ``parted`` says whether the stages' own gradients differ, and ``applied_parted`` whether the
        applied ones do. If there is a buffer, ``left_parted`` says whether those in ``.grad``
        differ. A collective call of the ranks with a copy.
        """
        if self.own is None or self.applied is None:
            return {}
        summed = self.own.clone()
        for _, _, group in self.copies:
            dist.all_reduce(summed, group=group)
        return {
            "own": float(self.own.norm()),
            "sum": float(summed.norm()),
            "applied": float(self.applied.norm()),
            "buffered": self.left is not None,
            "parted": self._parted(self.own),
            "applied_parted": self._parted(self.applied),
            "left_parted": None if self.left is None else self._parted(self.left),
        }

    def _parted(self, gradient: Tensor) -> bool:
        # A list first: every rank must make every collective call.
        differences = [replica_differences([("", gradient)], group) for _, _, group in self.copies]
        return any(differences)


def plainly(
    ctx: api.Context, pipeline: Any, shape: Shape, data: Iterable[tuple[Tensor, Tensor]]
) -> tuple[stepped.Plain, dict[str, Tensor]]:
    """What plain autograd computes, on this rank, for the present weights of all stages.

    The gradient of a tied weight is the sum over its copies, and counts once in the norm. The
    second return value has the gradients of the stage's own copies alone. A collective call.
    """
    stages = _gathered(ctx, pipeline.module)
    leaves = [w for weights in stages for w in weights.values()]
    losses, sums = [], [torch.zeros_like(leaf, dtype=torch.float32) for leaf in leaves]
    for tokens, labels in data:
        value = loss(_whole(shape, stages, tokens), labels)
        losses.append(float(value.detach()))
        for total, part in zip(
            sums, torch.autograd.grad(value, leaves, allow_unused=True), strict=True
        ):
            total += 0 if part is None else part.float()
    flat = iter(total / len(losses) for total in sums)
    own_gradients = [
        {name: next(flat) * _accumulated(ctx, stage, len(losses)) for name in weights}
        for stage, weights in enumerate(stages)
    ]
    tied = torch.stack(
        [by_name[copies.WEIGHT] for by_name in own_gradients if copies.WEIGHT in by_name]
    ).sum(0)
    right_gradients = [
        {**by_name, **({copies.WEIGHT: tied} if copies.WEIGHT in by_name else {})}
        for by_name in own_gradients
    ]
    # DeepSpeed's norm does not count the tied modules of later stages.
    counted = [
        gradient.norm()
        for stage, by_name in enumerate(right_gradients)
        for name, gradient in by_name.items()
        if not stage or not name.startswith(TIED)
    ]
    plain = stepped.Plain(
        sum(losses) / len(losses), float(torch.stack(counted).norm()), right_gradients[ctx.rank]
    )
    return plain, {name: g for name, g in own_gradients[ctx.rank].items() if name == copies.WEIGHT}


def _accumulated(ctx: api.Context, stage: int, micro_batches: int) -> float:
    """The factor by which a release's pipeline multiplies a stage's gradients; 1 if it is right.

    Releases have the bug ``pipeline_gas_twice``, and older ones its opposite. AdamW cancels it.
    """
    release = Version(ctx.pins["deepspeed"])
    if Version("0.16") <= release < Version("0.18.3"):
        return float(micro_batches)
    if Version("0.18.3") <= release < Version("0.19.3"):
        return float(micro_batches ** (stage + 1 - ctx.world_size))
    return 1.0


def _gathered(ctx: api.Context, module: nn.Module) -> list[dict[str, Tensor]]:
    """The weights of each stage, as leaves on this rank's device; a collective call."""
    mine = {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
    stages: list[Any] = [None] * ctx.world_size
    dist.all_gather_object(stages, mine)
    return [
        {name: w.to(ctx.device).requires_grad_() for name, w in weights.items()}
        for weights in stages
    ]


def _whole(shape: Shape, stages: Sequence[Mapping[str, Tensor]], tokens: Tensor) -> Tensor:
    """The model's logits: the first stage's copy embeds, the last stage's copy is the head."""

    def part(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}

    embedding, head = (part(stages[place], TIED) for place in (0, -1))
    x: Tensor = torch.func.functional_call(Embedding(shape), embedding, (tokens,))
    middle = {name: weight for weights in stages for name, weight in weights.items()}
    for number in (1, 2, 3):
        x = torch.func.functional_call(Block(shape), part(middle, f"{number}."), (x,))
    return F.linear(x, head["word_embeddings.weight"], head.get("head_bias"))


def _norm(value: Any) -> float | None:
    return None if value is None else float(value)


def _data(
    shape: Shape, training: Training, seed: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Random tokens and their successors, [batch, sequence], for each micro-batch."""
    generator = torch.Generator().manual_seed(seed)
    size = (training.micro_batches, training.batch, shape.sequence + 1)
    tokens = torch.randint(shape.vocabulary, size, generator=generator).to(device)
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens]
