"""transformers' Trainer over tiny models that are made in code, watched step by step.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from harness.bugs import api
from scenarios.common import plain_torch

VOCABULARY = 32
IGNORED = -100
"""The label of a token that does not count."""

Rows = dict[str, Tensor]
"""A row or a micro-batch: ``input_ids``, and ``labels`` if it has any."""

Facts = Callable[[Sequence[Rows], plain_torch.Plain, float], dict[str, Any]]
"""Returns what to record of a step besides what it applied. It gets this rank's micro-batches, what
plain torch computes on all ranks' micro-batches, and how far the weights moved since the last step.
"""


QUIET: dict[str, Any] = {
    "report_to": [],
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "max_grad_norm": 0.0,
}
"""Settings of any Trainer: it logs the loss of each step, and saves, shows and clips nothing."""


def llama() -> LlamaForCausalLM:
    """A LLaMA of two layers; its loss takes the number of items as a keyword."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.float32)


@dataclass(frozen=True)
class Loss:
    """The cross-entropy (nats) of logits [rows, (length,) classes] over the labels that count."""

    next_token: bool = True
    """Whether logits predict the next token's label, so that nothing predicts the first one."""
    smoothing: float = 0.0

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over the labels that count."""
        if self.next_token:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), reduction="sum", label_smoothing=self.smoothing
        )

    def count(self, labels: Tensor) -> int:
        """How many labels count."""
        return int((labels[:, 1:] if self.next_token else labels).ne(IGNORED).sum())


def arguments(ctx: api.Context, folder: Path, **settings: Any) -> TrainingArguments:
    """The arguments of a quiet Trainer on this lane."""
    parameters = inspect.signature(TrainingArguments).parameters
    if "ddp_backend" not in parameters:  # before 4.29
        settings |= {"xpu_backend": ctx.lane.backend, "no_cuda": ctx.lane is api.Lane.CPU}
    elif ctx.world_size > 1:
        settings["ddp_backend"] = ctx.lane.backend
    if "use_cpu" in parameters:
        settings["use_cpu"] = ctx.lane is api.Lane.CPU  # before 4.34 it was no_cuda
    return TrainingArguments(
        output_dir=str(folder), seed=ctx.seed, remove_unused_columns=False, **QUIET, **settings
    )


def constant(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """A schedule that leaves the rate as it is."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def sgd(
    ctx: api.Context,
    model: nn.Module,
    loss: Loss,
    rows: list[Rows],
    *,
    size: int,
    more: Facts,
    watch: type[Watch] | None = None,
    **settings: Any,
) -> Any:
    """A Trainer with SGD at the constant rate ``lr``, without clipping, whose steps are recorded.

    A micro-batch has ``size`` rows. The right loss is the mean of ``loss`` over all labels of a
    step that count, or what ``watch`` computes. The parameters ``lr``, ``steps`` and
    ``accumulation`` are the scenario's; ``settings`` are further arguments of the Trainer.
    """
    params = ctx.params
    model = model.to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=params.lr)
    (watch or Watch)(ctx, model, loss, optimizer, rows, more)
    return Trainer(
        model=model,
        args=arguments(
            ctx,
            ctx.folder / "out",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=params.accumulation,
            max_steps=params.steps,
            **settings,
        ),
        train_dataset=rows,
        optimizers=(optimizer, constant(optimizer)),
    )


def logged(trainer: Any) -> list[float]:
    """The losses that a Trainer has logged, one for each step."""
    return [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]


class Watched:
    """Records what each step of SGD at the rate ``lr``, a parameter, did with a model.

    Make it before the trainer, which may replace the model's forward. A subclass notes what the
    model is given, and says what to record.
    """

    def __init__(
        self, ctx: api.Context, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.ctx, self.model, self.step = ctx, model, 0
        self.plain = copy.deepcopy(model)  # before the hooks, which would be copied, too
        self.start = plain_torch.copied(model)
        self.seen: list[Any] = []
        """The micro-batches of the current step."""
        model.register_forward_pre_hook(self._given, with_kwargs=True)
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _given(self, _: Any, positional: Any, keywords: dict[str, Any]) -> None:
        """Add what the model is given to ``seen``."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """What to record of a step, from ``seen`` and from the ``weights`` before it."""
        raise NotImplementedError

    def _applied(self, plain: plain_torch.Plain) -> dict[str, Any]:
        """What the step applied of plain torch's gradient."""
        after = plain_torch.copied(self.model)
        return plain_torch.facts(plain, self.weights, after, self.ctx.params.lr)

    def _before(self, *_: Any) -> None:
        self.weights = plain_torch.copied(self.model)

    def _after(self, *_: Any) -> None:
        self.step += 1
        self.ctx.record("step", self.step, **self.facts())
        self.seen.clear()


class Watch(Watched):
    """Records what each step applied, and what plain torch computes on the rows that all ranks were
    given."""

    def __init__(
        self,
        ctx: api.Context,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        rows: list[Rows],
        extra_facts: Facts,
    ) -> None:
        super().__init__(ctx, model, optimizer)
        self.loss, self.more, self.left = loss, extra_facts, self.start
        self.labels = {tuple(row["input_ids"].tolist()): row["labels"] for row in rows}

    def _given(self, _: Any, __: Any, keywords: dict[str, Any]) -> None:
        tokens, labels = keywords["input_ids"], keywords.get("labels")
        if labels is None:  # the Trainer computes the loss itself, with label smoothing
            labels = torch.stack([self.labels[tuple(row)] for row in tokens.tolist()])
        batch = {"input_ids": tokens, "labels": labels.to(tokens.device)}
        self.seen.append({name: tensor.detach().clone() for name, tensor in batch.items()})

    def facts(self) -> dict[str, Any]:
        plain = self.plainly(self._of_all_ranks())
        distance = max(float((self.weights[n] - w).abs().max()) for n, w in self.left.items())
        self.left = plain_torch.copied(self.model)
        return {**self.more(self.seen, plain, distance), **self._applied(plain)}

    def _of_all_ranks(self) -> list[Rows]:
        """The micro-batches that all ranks were given in this step."""
        if self.ctx.world_size == 1:
            return list(self.seen)
        by_rank: list[Any] = [None] * self.ctx.world_size
        dist.all_gather_object(by_rank, [{k: v.cpu() for k, v in b.items()} for b in self.seen])
        return [
            {k: v.to(self.ctx.device) for k, v in b.items()} for batches in by_rank for b in batches
        ]

    def plainly(self, batches: list[Rows]) -> plain_torch.Plain:
        """Differentiate each micro-batch's part of the mean over all labels that count, times the
        number of micro-batches: the mean of these parts is the mean over all labels."""
        labels = sum(self.loss.count(batch["labels"]) for batch in batches)

        def part(weights: Any, batch: Rows) -> Tensor:
            answer = torch.func.functional_call(self.plain, dict(weights), (), kwargs=batch)
            total = self.loss.total(answer["logits"], batch["labels"])
            return total * len(batches) / labels

        return plain_torch.differentiate(part, self.weights, batches)
