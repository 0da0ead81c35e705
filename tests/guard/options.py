"""The options of the tiny trainings, as words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

from tests.guard.sharing import PARALLEL


class Has:
    """Whether a training has an option."""

    def __init__(self, words: str) -> None:
        self.words = set(words.split())
        unknown = self.words - {*PARALLEL, *OPTIMIZERS, *OPTIONS, *FAULTS}
        if unknown:
            raise ValueError(f"no such option: {', '.join(sorted(unknown))}")

    def __call__(self, *words: str) -> bool:
        return not self.words.isdisjoint(words)

    def choose(self, functions: dict[str, Any]) -> Any:
        """The function of the word that the training has; otherwise the first one."""
        return next((functions[word] for word in functions if word in self.words), None) or next(
            iter(functions.values())
        )


def grouped(parameters: list[Any]) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "lr": 5e-4},
    ]


class Scattered(torch.optim.Optimizer):
    """Reduces gradients in its step, each rank a part of them, and gathers the weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for weight in (one for group in self.param_groups for one in group["params"]):
            if weight.numel() % ranks:
                dist.all_reduce(weight.grad)
                weight.sub_(weight.grad, alpha=0.01 / ranks)
                continue
            size = weight.numel() // ranks
            gradient = torch.empty(size)
            dist.reduce_scatter_tensor(gradient, weight.grad.flatten())
            part = weight.view(-1)[rank * size : (rank + 1) * size] - 0.01 / ranks * gradient
            dist.all_gather_into_tensor(weight.data.view(-1), part)


class Divided(torch.optim.Optimizer):
    """Steps every second weight on each of two ranks, and gathers the others."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        weights = [one for group in self.param_groups for one in group["params"]]
        for weight in weights[rank::ranks]:
            weight.sub_(weight.grad, alpha=0.01)
        for number, weight in enumerate(weights):
            copies = [torch.empty_like(weight) for _ in range(ranks)]
            dist.all_gather(copies, weight.detach())
            weight.copy_(copies[number % ranks])


OPTIMIZERS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 1e-3, fused=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3, weight_decay=0.01),
    "sgd": lambda parameters: torch.optim.SGD(
        parameters, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=2),
    "zero_redundancy": lambda parameters: ZeroRedundancyOptimizer(
        parameters, torch.optim.AdamW, lr=1e-3
    ),
    "post_local_sgd": lambda parameters: PostLocalSGDOptimizer(
        torch.optim.SGD(parameters, 0.01), PeriodicModelAverager(4, warmup_steps=6)
    ),
    "scattered": lambda parameters: Scattered(parameters, {"lr": 0.01}),
    "divided": lambda parameters: Divided(parameters, {"lr": 0.01}),
    "groups": lambda parameters: torch.optim.AdamW(grouped(parameters), 1e-3),
}

OPTIONS = {
    "accumulate": "four micro-batches a step, the first three without a reduction",
    "accumulate_reduced": "four micro-batches a step, each with a reduction",
    "batch_norm": "a batch norm, whose buffers differ on the ranks",
    "bf16": "autocast to bf16",
    "bf16_weights": "weights in bf16",
    "bucket_view": "DDP's gradients are views of its buckets",
    "checkpoints": "the blocks' activations are computed twice",
    "clears_modules": "modules clear the gradients, not the optimizers",
    "clip": "gradients are clipped by their norm",
    "clip_values": "gradients are clipped by value",
    "closure": "the optimizer calls a closure",
    "columns": "FSDP2 shards the last dimension",
    "compile": "the model is compiled",
    "diloco": "an outer optimizer moves the weights by the mean of what the inner ones did",
    "draws": "each step draws its rows, without a loader",
    "dropout": "with a dropout",
    "asks_state": "the optimizer's state is read before the first step",
    "early": "an optimizer that nobody steps exists beside the one that trains",
    "epochs": "five epochs of a small dataset",
    "evaluates": "an evaluation each fifth step, on all rows",
    "fp16": "autocast to fp16, with a loss scaler",
    "flat": "FSDP1 shows the optimizer its flat parameters",
    "frozen": "the embedding does not train",
    "gan": "a critic with an optimizer of its own, which steps first",
    "hybrid_shard": "FSDP1 shards among half of the ranks",
    "interleaved": "each rank of a pipeline has two stages",
    "masks": "an attention with a mask of infinite scores",
    "half_loss": "each loss has a weight of a half",
    "keeps_zeros": "gradients are set to zero, not to None",
    "local_sgd": "no gradient is reduced, and the weights are averaged each fourth step",
    "logs": "the loop gathers its losses, for a log",
    "log_probabilities": "the loss is a sum that the loop computes and divides by the tokens",
    "mixed": "FSDP2 computes in bf16",
    "moving_average": "a copy of the model follows it",
    "no_shard": "FSDP1 shards nothing",
    "one_f_one_b": "a pipeline alternates forwards and backwards",
    "one_longer": "the loop multiplies the gradient of one parameter by 1.5, which trains faster",
    "other_terms": "the loss has another term",
    "own_loss": "the loss is a mean that the loop computes itself",
    "overflows": "the first gradients in fp16 overflow",
    "penalty": "a penalty on a gradient",
    "reads_ahead": "each epoch is read before its first step",
    "same_batch": "each step of all ranks has the same made-up rows",
    "row_sums": "each loss is a sum over its rows",
    "saves": "the optimizer's state is saved, and loaded later",
    "sequence_parallel": "tensor parallelism also splits the words of a norm",
    "shard_grad_op": "FSDP1 keeps whole weights until the backward",
    "sharded_stages": "FSDP2 shards the stages of a pipeline",
    "skips_block": "some rows skip a block",
    "skips_steps": "each fourth step is skipped",
    "split_words": "tensor parallelism splits the embedding by words",
    "static_graph": "DDP's static graph",
    "stream": "an iterable dataset",
    "sums_rightly": "gradients are summed over the ranks, and each has its part of the loss",
    "sum_loss": "the sum of losses, divided by the number of words",
    "deep": "so many parameters that a check looks at a part of them",
    "tied": "embedding and output share a weight",
    "unused": "a layer is never called",
    "two_losses": "the loss is the mean of two",
    "two_optimizers": "the output has an optimizer of its own",
    "warm_up": "the first step has a learning rate of 0",
    "workers": "the loader has two worker processes",
}

FAULTS = {
    "called_twice": "a pipeline is called twice a step, and divides the first gradients twice",
    "norms_alone": "the gradients of norms are not added over the ranks of tensor parallelism",
    "nan_forward": "from step 12 on, a module of rank 1 computes nan",
    "nan_backward": "from step 12 on, the gradient of a module of rank 1 is nan",
    "clip_scaled": "gradients are clipped before the loss scaler divides them",
    "never_reduced": "gradients are not averaged over the ranks",
    "summed": "gradients are summed over the ranks, not averaged",
    "perturbed": "at step 12 rank 1 moves a weight by 0.001",
    "flipped": "at step 12 one bit of one weight of rank 1 flips",
    "undivided": "the losses of micro-batches are summed",
    "divided_by_ranks": "the losses are divided by the ranks, and gradients are averaged",
    "divided_twice": "the losses are divided twice by the number of micro-batches",
    "last_only": "gradients are cleared after each micro-batch",
    "copies_trained": "the optimizer has copies of the parameters",
    "other_seeds": "each rank begins with other weights",
    "same_rows": "all ranks read the rows of rank 0",
    "same_order": "each epoch has the order of the first",
    "always_overflows": "each gradient overflows, whatever its scale",
    "rate_lost": "after a load, the schedule begins again",
    "fewer": "from step 12 on, steps have one micro-batch, whose loss is divided by four",
    "short_steps": "the learning rate is 20 times lower",
    "never_cleared": "the gradients of a step are added to those of the steps before",
}
