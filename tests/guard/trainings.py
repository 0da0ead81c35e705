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
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

WORDS, LENGTH, WIDTH, ROWS = 32, 8, 32, 4
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


class Model(nn.Module):
    """Predicts the next word of each word."""

    def __init__(self, has: Has) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(has) for _ in range(2))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        if has("tied"):
            self.out.weight = self.words.weight
        self.idle = nn.Linear(WIDTH, WIDTH) if has("unused") else None
        self.normalise = nn.BatchNorm1d(WIDTH) if has("batch_norm") else None
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
        return self.out(hidden)


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
    return nn.parallel.DistributedDataParallel(
        model,
        find_unused_parameters=has("unused", "skips_block"),
        static_graph=has("static_graph"),
        gradient_as_bucket_view=has("bucket_view"),
    )


def by_hand(model: Model, has: Has) -> nn.Module:
    return model  # see ``reduce_by_hand``


def fsdp2(model: Model, has: Has, **settings: Any) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if has("mixed"):
        settings["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def hsdp(model: Model, has: Has) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("copies", "shards"))
    return fsdp2(model, has, mesh=mesh)


def fsdp1(model: Model, has: Has) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def fsdp1_grad_op(model: Model, has: Has) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    return FullyShardedDataParallel(
        model,
        use_orig_params=True,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    )


def tensor_parallel(model: Model, has: Has) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("parts",))
    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    for block in model.blocks:
        parallel.parallelize_module(block, mesh, plan)
    return model


PARALLEL: dict[str, Callable[[Model, Has], nn.Module]] = {
    "ddp": ddp,
    "by_hand": by_hand,
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "fsdp1": fsdp1,
    "fsdp1_grad_op": fsdp1_grad_op,
    "tensor_parallel": tensor_parallel,
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
    "compile": "the model is compiled",
    "dropout": "with a dropout",
    "early": "an optimizer that nobody steps exists beside the one that trains",
    "epochs": "five epochs of a small dataset",
    "evaluates": "an evaluation each fifth step, on all rows",
    "fp16": "autocast to fp16, with a loss scaler",
    "frozen": "the embedding does not train",
    "gan": "a critic with an optimizer of its own, which steps first",
    "keeps_zeros": "gradients are set to zero, not to None",
    "mixed": "FSDP2 computes in bf16",
    "moving_average": "a copy of the model follows it",
    "other_terms": "the loss has another term",
    "overflows": "the first gradients in fp16 overflow",
    "penalty": "a penalty on a gradient",
    "saves": "the optimizer's state is saved, and loaded later",
    "skips_block": "some rows skip a block",
    "skips_steps": "each fourth step is skipped",
    "static_graph": "DDP's static graph",
    "stream": "an iterable dataset",
    "sum_loss": "the sum of losses, divided by the number of words",
    "tied": "embedding and output share a weight",
    "unused": "a layer is never called",
    "two_optimizers": "the output has an optimizer of its own",
    "warm_up": "the first step has a learning rate of 0",
    "workers": "the loader has two worker processes",
}

FAULTS = {
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
    alone = has("tensor_parallel")  # its ranks train on the same rows
    ranks = 1 if alone else dist.get_world_size()
    rank = 0 if alone or has("same_rows") else dist.get_rank()
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
        self.schedule = self._schedule(1 if not has("warm_up") else 0)
        scale = 2.0**24 if has("overflows") else 2.0**8
        self.scaler = torch.amp.GradScaler("cpu", scale, growth_interval=4, enabled=has("fp16"))
        self.batches = batches(has)
        self.saved: Any = None
        self.losses: list[float] = []

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        make, parameters = self.has.choose(OPTIMIZERS), self.parameters
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
        for micro in range(count):
            is_last = micro == count - 1
            with self._reducing(is_last):
                loss = self._loss(next(self.batches))
                self.losses.append(float(loss.detach()))
                self.scaler.scale(loss / divisor).backward()
            if self.has("last_only") and not is_last:
                self._clear()
        if self.has("by_hand"):
            reduce_by_hand(self.parameters, self.has)

    def _reducing(self, is_last: bool) -> Any:
        """A block whose backward reduces its gradients, or does not."""
        reduces = not self.has("never_reduced") and (is_last or not self.has("accumulate"))
        if self.has("fsdp2", "hsdp"):
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
        loss = F.cross_entropy(scores, words)
        if self.has("other_terms"):
            loss = 0.5 * loss + 0.5 * scores.square().mean()
        if self.has("penalty"):
            (gradient,) = torch.autograd.grad(loss, self.model.out.weight, create_graph=True)
            loss = loss + 1e-3 * gradient.square().sum()
        return loss

    def _spoil(self, step: int) -> None:
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
            if self.has("flipped"):
                weight: Any = self.model.out.weight
                part = weight.to_local() if hasattr(weight, "to_local") else weight
                part.view(torch.int32).view(-1)[333] ^= 1

    def _clip(self) -> None:
        if self.has("clip", "clip_values"):
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


def reduce_by_hand(parameters: list[Any], has: Has) -> None:
    for parameter in parameters:
        if parameter.grad is not None and not has("never_reduced"):
            dist.all_reduce(parameter.grad)
            if not has("summed"):
                parameter.grad /= dist.get_world_size()


def train(
    words: str, steps: int = 24, before_step: Callable[[int], None] = lambda step: None
) -> Loop:
    """Train on this rank; the process group is up. Returns the training."""
    loop = Gan(words) if "gan" in words.split() else Loop(words)
    loop.train(steps, before_step)
    return loop


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(os.environ["TRAINING"])
    dist.destroy_process_group()
