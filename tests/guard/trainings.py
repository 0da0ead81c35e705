"""Tiny trainings, right and wrong, that know nothing of guard.

``train("ddp accumulate clip")`` trains a small model with the options of these words. Words of
``PARALLEL`` say how the ranks share the work, those of ``OPTIMIZERS`` which optimizer steps, and
each of the other words of ``OPTIONS`` changes one thing. Those of ``FAULTS`` are mistakes that
change no shape and raise nothing.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local_sgd
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

WORDS, LENGTH, WIDTH, ROWS = 32, 8, 32, 4
DEPTH = 32
MICRO_BATCHES = 4
FAULT_STEP = 12
"""The step before whose update a fault happens that happens once."""


class Block(nn.Module):
    def __init__(self, has: Has) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1 if has("dropout") else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Attention(nn.Module):
    """Looks at earlier words only: the scores of the later ones are infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = Mask()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mask(x @ x.transpose(1, 2)).softmax(-1) @ x


class Mask(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf)


class Strange(nn.Module):
    """From step 12 on, its output on rank 1, or its gradient, is not finite."""

    def __init__(self, has: Has) -> None:
        super().__init__()
        self.has, self.calls = has, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls < FAULT_STEP or dist.get_rank() != 1:
            return x
        if self.has("nan_forward"):
            return x * (x[..., :1] - torch.inf).log()
        if self.has("nan_backward"):
            return x + (x - x).square().sum(-1, keepdim=True).sqrt()
        return x.masked_fill(torch.arange(x.shape[-1]) < WORDS // 2, -torch.inf)  # scores


class Model(nn.Module):
    """Predicts the next word of each word."""

    def __init__(self, has: Has) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(has) for _ in range(DEPTH if has("deep") else 2))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        if has("tied"):
            self.out.weight = self.words.weight
        self.idle = nn.Linear(WIDTH, WIDTH) if has("unused") else None
        self.normalise = nn.BatchNorm1d(WIDTH) if has("batch_norm") else None
        self.attention = Attention() if has("masks") else None
        self.strange = Strange(has) if has("nan_forward", "nan_backward") else None
        self.forbids = Strange(has) if has("inf_loss") else None
        self.skips, self.checkpoints = has("skips_block"), has("checkpoints")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x)
        for number, block in enumerate(self.blocks):
            if self.skips and number and int(x[0, 0]) % 2:
                continue
            if self.checkpoints:
                from torch.utils.checkpoint import checkpoint

                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        if self.normalise is not None:
            hidden = self.normalise(hidden.transpose(1, 2)).transpose(1, 2)
        if self.attention is not None:
            hidden = self.attention(hidden)
        if self.strange is not None:
            hidden = self.strange(hidden)
        scores = self.out(hidden)
        return scores if self.forbids is None else self.forbids(scores)


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


# -- how ranks share the work --


def ddp(model: Model, has: Has) -> nn.Module:
    wrapped = nn.parallel.DistributedDataParallel(
        model,
        find_unused_parameters=has("unused", "skips_block"),
        static_graph=has("static_graph"),
        gradient_as_bucket_view=has("bucket_view"),
    )
    if has("post_local_sgd"):
        alone = dist.new_subgroups(1)[0]
        state = post_local_sgd.PostLocalSGDState(None, alone, start_localSGD_iter=6)
        wrapped.register_comm_hook(state, post_local_sgd.post_localSGD_hook)
    return wrapped


def by_hand(model: Model, has: Has) -> nn.Module:
    return model  # see ``reduce_by_hand``


def mesh_of(**sizes: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def fsdp2(model: Model, has: Has, **settings: Any) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard

    if has("mixed"):
        settings["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if has("columns"):
        settings["shard_placement_fn"] = lambda p: Shard(p.ndim - 1)
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    if has("summed", "sums_rightly"):
        for part in (*model.blocks, model):
            part.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            part.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return model


def hsdp(model: Model, has: Has) -> nn.Module:
    ranks = dist.get_world_size()
    shards = max(1, ranks // 2)
    return fsdp2(model, has, mesh=mesh_of(copies=ranks // shards, shards=shards))


def fsdp1(model: Model, has: Has) -> nn.Module:
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
        wrap,
    )

    ranks = dist.get_world_size()
    settings: dict[str, Any] = {
        "use_orig_params": not has("flat"),
        "device_id": torch.device("cpu"),
        "sharding_strategy": ShardingStrategy.FULL_SHARD,
    }
    for word in ("shard_grad_op", "no_shard", "hybrid_shard"):
        if has(word):
            settings["sharding_strategy"] = ShardingStrategy[word.upper()]
    if has("hybrid_shard"):
        settings["device_mesh"] = mesh_of(copies=2, shards=ranks // 2)
    if has("mixed"):
        settings["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
    settings["auto_wrap_policy"] = wrap.ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, **settings)


def tensor_parallel(model: Model, has: Has, mesh: Any = None) -> nn.Module:
    from torch.distributed.tensor import Replicate, Shard, parallel

    mesh = mesh or mesh_of(parts=dist.get_world_size())
    plan: dict[str, Any] = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    if has("sequence_parallel"):
        plan = {
            "": parallel.PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)
            ),
            "norm": parallel.SequenceParallel(use_local_output=False),
            "up": parallel.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "down": parallel.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    for block in model.blocks:
        if has("sequence_parallel"):
            block.register_forward_hook(lambda _m, _a, out: out.full_tensor())
        parallel.parallelize_module(block, mesh, plan)
    return model


def fsdp2_tensor_parallel(model: Model, has: Has) -> nn.Module:
    mesh = mesh_of(copies=dist.get_world_size() // 2, parts=2)
    tensor_parallel(model, has, mesh["parts"])
    return fsdp2(model, has, mesh=mesh["copies"])


class Stage(nn.Module):
    """A part of the model, on a rank of a pipeline."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


STAGES = 2
"""Ranks of a pipeline."""


def pipeline(model: Model, has: Has) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    copies = dist.get_world_size() // STAGES
    mesh = mesh_of(copies=copies, stages=STAGES)
    layers: list[nn.Module] = [model.words, *model.blocks, model.out]
    count = len(layers) if has("interleaved") else STAGES
    size = len(layers) // count
    place = mesh.get_local_rank("stages")
    stages = nn.ModuleList(
        Stage(layers[n * size : (n + 1) * size]) for n in range(place, count, STAGES)
    )
    if copies > 1 and has("sharded_stages"):
        for stage in stages:
            fully_shard(stage, mesh=mesh["copies"])
    stages.mesh, stages.count = mesh, count  # type: ignore[assignment]
    return stages


def stages_by_hand(model: Model, has: Has) -> nn.Module:
    torch.manual_seed(0)
    block = Block(has)  # each rank's has the same weights at first
    ends = [model.words, nn.Identity(), nn.Identity(), model.out]
    return nn.Sequential(*[*ends[:2], block] if dist.get_rank() == 0 else [block, *ends[2:]])


def rows_of(has: Has) -> tuple[int, int]:
    """Of how many readers of rows this rank is which one: those of one tensor-parallel group read
    the same ones."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if has("tensor_parallel", "stages_by_hand"):
        return 1, 0
    if has("fsdp2_tensor_parallel", "pipeline"):
        return max(1, ranks // 2), rank // 2
    return ranks, rank


PARALLEL: dict[str, Callable[[Model, Has], nn.Module]] = {
    "ddp": ddp,
    "by_hand": by_hand,
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "fsdp1": fsdp1,
    "tensor_parallel": tensor_parallel,
    "fsdp2_tensor_parallel": fsdp2_tensor_parallel,
    "pipeline": pipeline,
    "stages_by_hand": stages_by_hand,
}

# -- optimizers --


def grouped(parameters: list[Any]) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "lr": 5e-4},
    ]


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
    "keeps_zeros": "gradients are set to zero, not to None",
    "local_sgd": "no gradient is reduced, and the weights are averaged each fourth step",
    "mixed": "FSDP2 computes in bf16",
    "moving_average": "a copy of the model follows it",
    "no_shard": "FSDP1 shards nothing",
    "one_f_one_b": "a pipeline alternates forwards and backwards",
    "other_terms": "the loss has another term",
    "own_loss": "the loss is a mean that the loop computes itself",
    "overflows": "the first gradients in fp16 overflow",
    "penalty": "a penalty on a gradient",
    "saves": "the optimizer's state is saved, and loaded later",
    "sequence_parallel": "tensor parallelism also splits the words of a norm",
    "shard_grad_op": "FSDP1 keeps whole weights until the backward",
    "sharded_stages": "FSDP2 shards the stages of a pipeline",
    "skips_block": "some rows skip a block",
    "skips_steps": "each fourth step is skipped",
    "static_graph": "DDP's static graph",
    "stream": "an iterable dataset",
    "sums_rightly": "gradients are summed over the ranks, and each has its part of the loss",
    "sum_loss": "the sum of losses, divided by the number of words",
    "deep": "so many parameters that a check looks at a part of them",
    "tied": "embedding and output share a weight",
    "unused": "a layer is never called",
    "two_optimizers": "the output has an optimizer of its own",
    "warm_up": "the first step has a learning rate of 0",
    "workers": "the loader has two worker processes",
}

FAULTS = {
    "called_twice": "a pipeline is called twice a step, and divides the first gradients twice",
    "norms_alone": "the gradients of norms are not added over the ranks of tensor parallelism",
    "nan_forward": "from step 12 on, a module of rank 1 computes nan",
    "nan_backward": "from step 12 on, the gradient of a module of rank 1 is nan",
    "inf_loss": "from step 12 on, the loss of rank 1 is infinite, and its gradients are finite",
    "nan_weight": "at step 12 a weight of rank 1 becomes nan",
    "clip_scaled": "gradients are clipped before the loss scaler divides them",
    "never_reduced": "gradients are not averaged over the ranks",
    "summed": "gradients are summed over the ranks, not averaged",
    "perturbed": "at step 12 rank 1 moves a weight by 0.001",
    "flipped": "at step 12 one bit of one weight of rank 1 flips",
    "undivided": "the losses of micro-batches are summed",
    "divided_twice": "the losses are divided twice by the number of micro-batches",
    "last_only": "gradients are cleared after each micro-batch",
    "copies_trained": "the optimizer has copies of the parameters",
    "same_rows": "all ranks read the rows of rank 0",
    "same_order": "each epoch has the order of the first",
    "always_overflows": "each gradient overflows, whatever its scale",
    "rate_lost": "a load does not put back the learning rate",
    "fewer": "from step 12 on, steps have one micro-batch instead of four",
    "short_steps": "the learning rate is 20 times lower",
    "never_cleared": "the gradients of a step are added to those of the steps before",
    "one_too_long": "the gradient of one parameter is 1.5 times too long",
}


# -- data --


class Sentences(Dataset[Tensor]):
    def __init__(self, has: Has) -> None:
        count = 64 if has("epochs") else 4096
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randint(0, WORDS, (count, LENGTH + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


class Stream(IterableDataset[Tensor]):
    def __init__(self, has: Has) -> None:
        self.rows, self.splits = Sentences(has).rows, not has("same_rows")

    def __iter__(self) -> Iterator[Tensor]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        yield from self.rows[rank::ranks] if self.splits else self.rows


def batches(has: Has) -> Iterator[Tensor]:
    if has("stream"):
        yield from DataLoader(Stream(has), batch_size=ROWS)
        return
    data = Sentences(has)
    ranks, rank = rows_of(has)
    rank = 0 if has("same_rows") else rank
    sampler: DistributedSampler[Tensor] = DistributedSampler(data, ranks, rank)
    loader = DataLoader(data, ROWS, sampler=sampler, num_workers=2 if has("workers") else 0)
    for epoch in range(10**6):
        if not has("same_order"):
            sampler.set_epoch(epoch)
        yield from loader


# -- the loop --


class Loop:
    """One training on this rank."""

    def __init__(self, words: str) -> None:
        has = self.has = Has(words)
        torch.manual_seed(0)
        self.model = Model(has)
        if has("bf16_weights"):
            self.model = self.model.bfloat16()
        if has("frozen"):
            self.model.words.weight.requires_grad_(False)
        self.follower = copy.deepcopy(self.model) if has("moving_average") else None
        self.run: Any = has.choose(PARALLEL)(self.model, has)
        if has("compile"):
            self.run = torch.compile(self.run, backend="aot_eager")
        self.parameters = [p for p in self.run.parameters() if p.requires_grad]
        self.optimizers = self._optimizers()
        if has("diloco"):
            self.outer = torch.optim.SGD(self.parameters, 0.7, momentum=0.9, nesterov=True)
            self.before = [parameter.detach().clone() for parameter in self.parameters]
        if has("asks_state"):
            from torch.distributed.checkpoint import state_dict

            state_dict.get_optimizer_state_dict(self.model, self.optimizers[0])
        self.schedule = self._schedule(1 if not has("warm_up") else 0)
        scale = 2.0**24 if has("overflows") else 2.0**8
        self.scaler = torch.amp.GradScaler("cpu", scale, growth_interval=4, enabled=has("fp16"))
        self.batches = batches(has)
        self.saved: Any = None
        self.losses: list[float] = []

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        make, parameters = self.has.choose(OPTIMIZERS), self.parameters
        if self.has("short_steps"):
            return [torch.optim.AdamW(parameters, 5e-5)]
        if self.has("early"):
            self.unstepped = torch.optim.SGD(parameters, 1.0)
            gone = torch.optim.SGD(parameters, 1.0)
            del gone
        if self.has("copies_trained"):
            parameters = [p.detach().clone().requires_grad_() for p in parameters]
        if self.has("two_optimizers"):
            last = self.model.out.weight
            others = [p for p in parameters if p is not last]
            return [make(others), torch.optim.SGD([last], 0.01)]
        return [make(parameters)]

    def _schedule(self, first: int) -> Any:
        if self.has("lbfgs"):
            return None
        return torch.optim.lr_scheduler.LambdaLR(
            self.optimizers[0], lambda step: min(1.0, (step + first) / 5)
        )

    def train(self, steps: int, before_step: Callable[[int], None]) -> None:
        for step in range(1, steps + 1):
            before_step(step)
            if self.has("lbfgs", "closure"):
                self._step_with_closure()
            else:
                self._compute_gradients(step)
                self._spoil(step)
                self._clip()
                self._step(step)
            if self.schedule is not None:
                self.schedule.step()
            self._between_steps(step)

    # -- gradients --

    def _compute_gradients(self, step: int) -> None:
        accumulates = self.has("accumulate", "accumulate_reduced")
        count = MICRO_BATCHES if accumulates else 1
        if self.has("fewer") and step >= FAULT_STEP:
            count = 1
        divisor = 1 if self.has("undivided") else count
        divisor = count * count if self.has("divided_twice") else divisor
        divisor *= dist.get_world_size() if self.has("sums_rightly") else 1
        for micro in range(count):
            is_last = micro == count - 1
            with self._reducing(is_last):
                loss = self._loss(next(self.batches))
                self.losses.append(float(loss.detach()))
                self.scaler.scale(loss / divisor).backward()
            if self.has("last_only") and not is_last:
                self._clear()
        if self.has("by_hand") and not self.has("local_sgd", "diloco"):
            reduce_by_hand(self.parameters, self.has)

    def _reducing(self, is_last: bool) -> Any:
        """A block whose backward reduces its gradients, or does not."""
        reduces = not self.has("never_reduced") and (is_last or not self.has("accumulate"))
        if self.has("fsdp2", "hsdp", "fsdp2_tensor_parallel"):
            self.model.set_requires_gradient_sync(reduces)  # type: ignore[operator]
        elif not reduces and hasattr(self.run, "no_sync"):
            return self.run.no_sync()
        return contextlib.nullcontext()

    def _loss(self, rows: Tensor) -> Tensor:
        kind = torch.float16 if self.has("fp16") else torch.bfloat16
        with torch.autocast("cpu", kind, enabled=self.has("bf16", "fp16")):
            scores = self.run(rows[:, :-1])
        scores, words = scores.float().reshape(-1, WORDS), rows[:, 1:].reshape(-1)
        if self.has("sum_loss"):
            return F.cross_entropy(scores, words, reduction="sum") / words.numel()
        if self.has("own_loss"):
            return -scores.log_softmax(-1).gather(1, words[:, None]).mean()
        loss = F.cross_entropy(scores, words)
        if self.has("other_terms"):
            loss = 0.5 * loss + 0.5 * scores.square().mean()
        if self.has("penalty"):
            (gradient,) = torch.autograd.grad(loss, self.model.out.weight, create_graph=True)
            loss = loss + 1e-3 * gradient.square().sum()
        return loss

    def _spoil(self, step: int) -> None:
        if self.has("norms_alone"):
            self._forget_parts()
        first = self.parameters[0]
        if self.has("always_overflows") and first.grad is not None:
            first.grad.fill_(torch.inf)
        if self.has("one_too_long") and first.grad is not None:
            first.grad.mul_(1.5)
        if step != FAULT_STEP or dist.get_rank() != 1:
            return
        with torch.no_grad():
            if self.has("perturbed"):
                first.add_(1e-3)
            if self.has("nan_weight"):
                self.model.out.weight.view(-1)[3] = torch.nan
            if self.has("flipped"):
                weight: Any = self.model.out.weight
                part = weight.to_local() if hasattr(weight, "to_local") else weight
                part.view(torch.int32).view(-1)[333] ^= 1

    def _forget_parts(self) -> None:
        """Use this rank's part of each gradient that is still to be added."""
        from torch.distributed.tensor import DTensor, Replicate

        for parameter in self.parameters:
            gradient: Any = parameter.grad
            if isinstance(gradient, DTensor) and gradient.placements[0].is_partial():
                parameter.grad = DTensor.from_local(
                    gradient.to_local(), gradient.device_mesh, [Replicate()], run_check=False
                )

    def _clip(self) -> None:
        if self.has("clip", "clip_values") and not self.has("clip_scaled"):
            self.scaler.unscale_(self.optimizers[0])
        if self.has("clip"):
            nn.utils.clip_grad_norm_(self.parameters, 0.05)
        if self.has("clip_values"):
            nn.utils.clip_grad_value_(self.parameters, 1e-4)

    # -- steps --

    def _step(self, step: int) -> None:
        if self.has("skips_steps") and step % 4 == 0:
            self._clear()
            return
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        if not self.has("never_cleared"):
            self._clear()

    def _step_with_closure(self) -> None:
        rows, optimizer = next(self.batches), self.optimizers[0]

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self._loss(rows)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]

    def _clear(self) -> None:
        cleared = [self.run] if self.has("clears_modules") else self.optimizers
        for one in cleared:
            one.zero_grad(set_to_none=not self.has("keeps_zeros"))
        if self.has("copies_trained"):
            for parameter in self.parameters:
                parameter.grad = None

    def _between_steps(self, step: int) -> None:
        if self.has("diloco") and step % 6 == 0:
            self._step_outer()
        if self.has("local_sgd") and step % 4 == 0:
            for parameter in self.parameters:
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
        if self.follower is not None:
            with torch.no_grad():
                for mine, parameter in zip(
                    self.follower.parameters(), self.model.parameters(), strict=True
                ):
                    mine.lerp_(parameter, 0.01)
        if self.has("evaluates") and step % 5 == 0:
            self._evaluate()
        if self.has("saves", "rate_lost") and step == 8:
            assert self.schedule is not None
            self.saved = copy.deepcopy(
                (self.optimizers[0].state_dict(), self.schedule.state_dict())
            )
        if self.has("saves", "rate_lost") and step == FAULT_STEP:
            self._load()

    def _step_outer(self) -> None:
        for parameter, before in zip(self.parameters, self.before, strict=True):
            parameter.grad = before - parameter.detach()
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
            parameter.data.copy_(before)
        self.outer.step()
        self.outer.zero_grad()
        self.before = [parameter.detach().clone() for parameter in self.parameters]

    def _evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for number, rows in enumerate(DataLoader(Sentences(self.has), batch_size=8)):
                self._loss(rows)
                if number == 2:
                    break
        self.model.train()

    def _load(self) -> None:
        optimizer, schedule = self.saved
        self.optimizers[0].load_state_dict(optimizer)
        if self.has("rate_lost"):
            self.optimizers[0].param_groups[0]["lr"] = 5e-5
        else:
            self.schedule.load_state_dict(schedule)


class Gan(Loop):
    """A generator and a critic, each with an optimizer; the generator's loss goes through both."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        layers = nn.Sequential(nn.Linear(WORDS, 8), nn.GELU(), nn.Linear(8, 1))
        self.critic = nn.parallel.DistributedDataParallel(layers)
        self.critics = torch.optim.AdamW(self.critic.parameters(), 1e-3)

    def _compute_gradients(self, step: int) -> None:
        rows = next(self.batches)[:, :-1]
        self._clear()  # the generator's loss has given gradients to the critic
        made, real = self.run(rows).detach(), F.one_hot(rows, WORDS).float()
        (self.critic(made).mean() - self.critic(real).mean()).backward()
        self.critics.step()
        loss = self.critic(self.run(rows)).mean()
        self.losses.append(float(loss.detach()))
        loss.backward()

    def _clear(self) -> None:
        super()._clear()
        (self.critic if self.has("clears_modules") else self.critics).zero_grad()


class Pipeline(Loop):
    """Each rank trains one stage, or two, on micro-batches."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        from torch.distributed import pipelining

        self.model = self.run  # a rank has its stages alone
        mesh, count = self.run.mesh, self.run.count
        place, group = mesh.get_local_rank("stages"), mesh.get_group("stages")
        self.is_first, self.is_last = place == 0, place == STAGES - 1
        stages: list[Any] = [
            pipelining.PipelineStage(
                stage, place + n * STAGES, count, torch.device("cpu"), group=group
            )
            for n, stage in enumerate(self.run)
        ]
        micro = MICRO_BATCHES // 2
        if self.has("interleaved"):
            self.plan: Any = pipelining.ScheduleInterleaved1F1B(stages, micro, self._loss_of)
        elif self.has("one_f_one_b"):
            self.plan = pipelining.Schedule1F1B(stages[0], micro, self._loss_of)
        else:
            self.plan = pipelining.ScheduleGPipe(stages[0], micro, self._loss_of)

    def _loss_of(self, scores: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(scores.reshape(-1, WORDS), words.reshape(-1))

    def _compute_gradients(self, step: int) -> None:
        for _ in range(2 if self.has("called_twice") else 1):
            rows = next(self.batches)
            inputs = [rows[:, :-1].contiguous()] if self.is_first else []
            words = rows[:, 1:].contiguous()
            losses: list[Tensor] = []
            self.plan.step(*inputs, target=words if self.is_last else None, losses=losses)
            self.losses += [float(loss.detach()) for loss in losses]
        is_alone = self.run.mesh.size(0) == 1
        if not is_alone and not self.has("never_reduced", "sharded_stages"):
            # DDP in a stage fails in torch 2.13
            reduce_by_hand(self.parameters, self.has, self.run.mesh.get_group("copies"))


class StagesByHand(Loop):
    """A pipeline of two ranks that the loop writes itself."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.model = self.run

    def _compute_gradients(self, step: int) -> None:
        rows = next(self.batches)
        between = torch.zeros(ROWS, LENGTH, WIDTH)
        if dist.get_rank() == 0:
            hidden = self.run(rows[:, :-1])
            dist.send(hidden.detach(), 1)
            dist.recv(between, 1)
            hidden.backward(between)
            return
        dist.recv(between, 0)
        scores = self.run(between.requires_grad_())
        loss = F.cross_entropy(scores.reshape(-1, WORDS), rows[:, 1:].reshape(-1))
        self.losses.append(float(loss.detach()))
        loss.backward()
        assert between.grad is not None
        dist.send(between.grad, 0)


def reduce_by_hand(parameters: list[Any], has: Has, group: Any = None) -> None:
    for parameter in parameters:
        if parameter.grad is not None and not has("never_reduced"):
            dist.all_reduce(parameter.grad, group=group)
            if not has("summed", "sums_rightly"):
                parameter.grad /= dist.get_world_size(group)


def train(
    words: str, steps: int = 24, before_step: Callable[[int], None] = lambda step: None
) -> Loop:
    """Train on this rank; the process group is up. Returns the training."""
    kinds = {"gan": Gan, "pipeline": Pipeline, "stages_by_hand": StagesByHand}
    kind = next((kinds[word] for word in words.split() if word in kinds), Loop)
    loop = kind(words)
    loop.train(steps, before_step)
    return loop


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(os.environ["TRAINING"])
    dist.destroy_process_group()
