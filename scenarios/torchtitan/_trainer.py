"""Steps of torchtitan's Trainer, each compared with the whole model in this process.

Imports torch and torchtitan before 0.3: import it inside ``run``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torchtitan.config import JobConfig
from torchtitan.models import llama3
from torchtitan.protocols import train_spec
from torchtitan.train import Trainer

from harness.bugs import api
from scenarios.common import features

NAME, FLAVOR, IGNORED = "llama3_of_drawn_tokens", "debugmodel", -100
VOCABULARY = llama3.llama3_args[FLAVOR].vocab_size
Batch = tuple[dict[str, Tensor], Tensor]
Fault = Literal["sum", "means", "divided by the ranks"]


def train(
    ctx: api.Context, length: int, labels: Sequence[Sequence[int]], fault: Fault, **degrees: int
) -> None:
    """Train; the right gradients of a step are those of the mean over its labels.

    ``labels`` has, for each micro-batch of a step, the number of labels of each row. The copies of
    the model take turns with the micro-batches. The documented fault takes the sum over the labels,
    or the mean of the micro-batches' means, or divides the mean by the ranks. ``degrees`` are of
    the parallelism, such as ``pipeline_parallel_degree``.
    """
    with ctx.phase("init"):
        trainer: Any = _trainer(ctx, length, labels, degrees)
        whole = llama3.Transformer(trainer.model_args).to(ctx.device)
    parts = trainer.model_parts
    drawn, given = _batches(ctx, length, labels), trainer.batch_generator(trainer.dataloader)
    for step in api.each(ctx.params.steps):
        _copy_weights(parts, whole)
        micro_batches = [next(drawn) for _ in labels]
        loss, expected = _differentiated(whole, micro_batches, "mean of all")
        trainer.step += 1
        trainer.train_step(given)
        actual = {n: _whole(g) for part in parts for n, g in features.gradients(part).items()}
        _, documented = _differentiated(whole, micro_batches, fault)
        right, of_fault = ({n: each[n] for n in actual} for each in (expected, documented))
        features.record(ctx, step, loss, actual, right, of_fault)


def _differentiated(
    whole: Any, micro_batches: Sequence[Batch], over: Fault | Literal["mean of all"]
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss of the micro-batches, and its gradients."""
    sums, counts = [], []
    for inputs, labels in micro_batches:
        own = labels.to(next(whole.parameters()).device).flatten()
        logits = whole(inputs["input"].to(own.device)).flatten(0, 1)
        sums.append(cross_entropy(logits, own, reduction="sum"))
        counts.append(int((own != IGNORED).sum()))
    if over == "means":
        loss = torch.stack([s / count for s, count in zip(sums, counts, strict=True)]).mean()
    else:
        loss = torch.stack(sums).sum() / (1 if over == "sum" else sum(counts))
    if over == "divided by the ranks":
        loss = loss / dist.get_world_size()
    return loss, features.of_losses(whole, [loss])


def _batches(ctx: api.Context, length: int, labels: Sequence[Sequence[int]]) -> Iterator[Batch]:
    """Micro-batches of tokens, by the shared seed; the first labels of a row are ignored."""
    draw = torch.Generator().manual_seed(ctx.seed)
    while True:
        for counts in labels:
            tokens = torch.randint(VOCABULARY, (len(counts), length + 1), generator=draw)
            following = tokens[:, 1:].clone()
            for row, count in zip(following, counts, strict=True):
                row[: length - count] = IGNORED
            yield {"input": tokens[:, :-1]}, following


def _trainer(
    ctx: api.Context, length: int, labels: Sequence[Sequence[int]], degrees: Mapping[str, int]
) -> Trainer:
    """torchtitan's Trainer for its small LLaMA; only the data are not torchtitan's."""

    def loader(dp_rank: int, dp_world_size: int, **_: Any) -> Iterator[Batch]:
        return islice(_batches(ctx, length, labels), dp_rank, None, dp_world_size)

    specification = dataclasses.replace(
        llama3.get_train_spec(), build_tokenizer_fn=None, build_dataloader_fn=loader
    )
    train_spec.register_train_spec(NAME, specification)
    job, rows = JobConfig(), len(labels[0])
    job.job.dump_folder = str(ctx.folder)
    job.model.name, job.model.flavor = NAME, FLAVOR
    job.activation_checkpoint.mode = "none"
    job.training.local_batch_size, job.training.seq_len = rows, length
    job.training.global_batch_size = rows * len(labels)
    job.training.mixed_precision_param = "float32"
    job.training.max_norm = math.inf  # so that the gradients stay as they are
    for name, degree in degrees.items():
        setattr(job.parallelism, name, degree)
    return Trainer(job)


def _whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all ranks, if FSDP split it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _copy_weights(parts: list[Any], whole: Any) -> None:
    """Give the whole model the weights that the ranks train."""
    own = {name: _whole(w) for part in parts for name, w in part.state_dict().items()}
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, {name: weight.cpu() for name, weight in own.items()})
    whole.load_state_dict({name: w for each in of_ranks for name, w in each.items()}, strict=False)
