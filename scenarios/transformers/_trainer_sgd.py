"""transformers' Trainer with SGD, whose steps are compared with plain torch on all ranks' rows.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer

from harness.bugs import api
from scenarios.common import plain_torch
from scenarios.common.hf_trainer import arguments, constant
from scenarios.common.hf_watched import Watched

IGNORED = -100
"""The label of a token that does not count."""

Rows = dict[str, Tensor]
"""A row or a micro-batch: ``input_ids``, and ``labels`` if it has any."""

Facts = Callable[[Sequence[Rows], plain_torch.Plain, float], dict[str, Any]]
"""Returns what to record of a step besides what it applied. It gets this rank's micro-batches, what
plain torch computes on all ranks' micro-batches, and how far the weights moved since the last step.
"""


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

    def _note_batch(self, _: Any, __: Any, keywords: dict[str, Any]) -> None:
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
