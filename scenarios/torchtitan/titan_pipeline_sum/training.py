"""Steps of torchtitan's Trainer, each compared with the whole model in this process.

Imports torch and torchtitan: import it inside ``run``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtitan.config import JobConfig
from torchtitan.models import llama3
from torchtitan.protocols import train_spec
from torchtitan.train import Trainer

from harness.bugs import api
from scenarios.common import features

NAME, FLAVOR = "llama3_of_drawn_tokens", "debugmodel"
VOCABULARY = llama3.llama3_args[FLAVOR].vocab_size
Batch = tuple[dict[str, Tensor], Tensor]


def train(ctx: api.Context) -> None:
    """Train; the right gradients of a step are those of the mean over its tokens."""
    with ctx.phase("init"):
        trainer: Any = _trainer(ctx)
        whole = llama3.Transformer(trainer.model_args).to(ctx.device)
    parts, batches = trainer.model_parts, trainer.batch_generator(trainer.dataloader)
    for step, (inputs, labels) in zip(api.each(ctx.params.steps), _batches(ctx), strict=False):
        _copy_weights(parts, whole)
        logits = whole(inputs["input"].to(ctx.device))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        means = features.of_losses(whole, [loss])
        trainer.step += 1
        trainer.train_step(batches)
        actual = {n: g for part in parts for n, g in features.gradients(part).items()}
        expected = {name: means[name] for name in actual}
        sums = {name: labels.numel() * gradient for name, gradient in expected.items()}
        features.record(ctx, step, loss, actual, expected, sums)


def _batches(ctx: api.Context) -> Iterator[Batch]:
    """Inputs and their labels, the same on all ranks."""
    p, draw = ctx.params, torch.Generator().manual_seed(ctx.seed)
    while True:
        tokens = torch.randint(VOCABULARY, (p.rows, p.length + 1), generator=draw)
        yield {"input": tokens[:, :-1]}, tokens[:, 1:].to(ctx.device)


def _trainer(ctx: api.Context) -> Trainer:
    """torchtitan's Trainer for its small LLaMA; only the data are not torchtitan's."""
    p = ctx.params
    specification = dataclasses.replace(
        llama3.get_train_spec(),
        build_tokenizer_fn=None,
        build_dataloader_fn=lambda **_: _batches(ctx),
    )
    train_spec.register_train_spec(NAME, specification)
    job = JobConfig()
    job.job.dump_folder = str(ctx.folder)
    job.model.name, job.model.flavor = NAME, FLAVOR
    job.activation_checkpoint.mode = "none"
    job.training.local_batch_size, job.training.seq_len = p.rows, p.length
    job.training.mixed_precision_param = "float32"
    job.training.max_norm = math.inf  # so that the gradients stay as they are
    job.parallelism.pipeline_parallel_degree = ctx.world_size if p.pipeline else 1
    return Trainer(job)


def _copy_weights(parts: list[Any], whole: Any) -> None:
    """Give the whole model the weights that the ranks train."""
    own = {name: weight for part in parts for name, weight in part.state_dict().items()}
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, {name: weight.cpu() for name, weight in own.items()})
    whole.load_state_dict({name: w for each in of_ranks for name, w in each.items()}, strict=False)
