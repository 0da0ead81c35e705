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

from tests.guard.options import OPTIMIZERS, Has
from tests.guard.sharing import PARALLEL, STAGES, rows_of
from tests.guard.word_models import FAULT_STEP, LENGTH, MICRO_BATCHES, ROWS, WIDTH, WORDS, Model

HALF = 0.5


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
    rank = 0 if has("same_rows", "same_batch") else rank
    generator = torch.Generator().manual_seed(rank)
    while has("draws"):
        numbers = torch.randint(len(data), (ROWS,), generator=generator)
        for _ in range(10**6 if has("same_batch") else 1):
            yield data.rows[numbers]
    sampler: DistributedSampler[Tensor] = DistributedSampler(data, ranks, rank)
    loader = DataLoader(data, ROWS, sampler=sampler, num_workers=2 if has("workers") else 0)
    for epoch in range(10**6):
        if not has("same_order"):
            sampler.set_epoch(epoch)
        yield from list(loader) if has("reads_ahead") else loader


class Loop:
    """One training on this rank."""

    def __init__(self, words: str) -> None:
        has = self.has = Has(words)
        torch.manual_seed(dist.get_rank() if has("other_seeds") else 0)
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
        scale = 2.0**24 if has("overflows") else 2.0**10
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
            head = self.model.out.weight
            others = [p for p in parameters if p is not head]
            return [make(others), torch.optim.SGD([head], 0.01)]
        return [make(parameters)]

    def _schedule(self, start: int) -> Any:
        if self.has("lbfgs"):
            return None
        return torch.optim.lr_scheduler.LambdaLR(
            self.optimizers[0], lambda step: min(1.0, (step + start) / 5)
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
        divisor = 1 if self.has("undivided") else MICRO_BATCHES if accumulates else 1
        divisor = count * count if self.has("divided_twice") else divisor
        is_divided = self.has("sums_rightly", "divided_by_ranks")
        divisor *= dist.get_world_size() if is_divided else 1
        for micro in range(count):
            is_last = micro == count - 1
            with self._reducing(is_last):
                loss = self._loss(next(self.batches))
                self.losses.append(float(loss.detach()))
                if self.has("logs"):
                    values = torch.stack([loss.detach(), loss.detach().exp()])
                    dist.all_gather([torch.empty(2) for _ in range(dist.get_world_size())], values)
                self.scaler.scale(loss / divisor).backward()
            if self.has("last_only") and not is_last:
                self._clear()
        if self.has("by_hand") and not self.has("local_sgd", "diloco", "scattered"):
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
        if self.has("log_probabilities"):
            return -scores.log_softmax(-1).gather(1, words[:, None]).sum() / words.numel()
        if self.has("row_sums"):
            return F.cross_entropy(scores, words, reduction="sum")
        loss = F.cross_entropy(scores, words)
        loss = HALF * loss if self.has("half_loss") else loss
        if self.has("two_losses"):
            loss = HALF * (loss + F.cross_entropy(-scores, words))
        if self.has("other_terms"):
            loss = HALF * loss + HALF * scores.square().mean()
        if self.has("penalty"):
            (gradient,) = torch.autograd.grad(loss, self.model.out.weight, create_graph=True)
            loss = loss + 1e-3 * gradient.square().sum()
        return loss

    def _spoil(self, step: int) -> None:
        if self.has("norms_alone"):
            self._forget_parts()
        parameter = self.parameters[0]
        if self.has("always_overflows") and parameter.grad is not None:
            parameter.grad.fill_(torch.inf)
        if self.has("one_longer") and parameter.grad is not None:
            parameter.grad.mul_(1.5)
        if step != FAULT_STEP or dist.get_rank() != 1:
            return
        with torch.no_grad():
            if self.has("perturbed"):
                parameter.add_(1e-3)
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
        for holder in cleared:
            holder.zero_grad(set_to_none=not self.has("keeps_zeros"))
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
            self.schedule = self._schedule(1)
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
        generated, real = self.run(rows).detach(), F.one_hot(rows, WORDS).float()
        (self.critic(generated).mean() - self.critic(real).mean()).backward()
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
