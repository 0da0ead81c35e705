"""transformers' Trainer over tiny models that are made in code, watched step by step.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from harness.spec import Context, Lane
from scenarios.common import applied

VOCABULARY = 32
IGNORED = -100
"""The label of a token that does not count."""

Rows = dict[str, Tensor]
"""A row or a micro-batch: ``input_ids``, and ``labels`` if it has any."""

Facts = Callable[[Sequence[Rows], applied.Plain, float], dict[str, Any]]
"""What to record of a step besides what it applied: of the micro-batches that this rank was given,
of what plain torch computes on all ranks', and how far the weights moved since the last step."""


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


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss (nats) of the tokens that count; logits [rows, length, vocabulary]."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def arguments(ctx: Context, folder: Path, **more: Any) -> TrainingArguments:
    """The arguments of a quiet Trainer on this lane. It saves nothing unless ``more`` says so."""
    if ctx.world_size > 1:
        more["ddp_backend"] = ctx.lane.backend
    if "use_cpu" in inspect.signature(TrainingArguments).parameters:
        more["use_cpu"] = ctx.lane is Lane.CPU  # before 4.34 it was no_cuda
    return TrainingArguments(
        output_dir=str(folder),
        seed=ctx.seed,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **more,
    )


def sgd(
    ctx: Context,
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    rows: list[Rows],
    *,
    size: int,
    more: Facts,
) -> Any:
    """A Trainer with SGD at the constant rate ``lr``, without clipping, whose steps are recorded.

    ``loss(logits, labels)`` is the right mean of a micro-batch of ``size`` rows. The parameters
    ``lr``, ``steps`` and ``accumulation`` are the scenario's.
    """
    params = ctx.params
    model = model.to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=params.lr)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    Watch(ctx, model, loss, optimizer, more)
    return Trainer(
        model=model,
        args=arguments(
            ctx,
            ctx.folder / "out",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=params.accumulation,
            max_steps=params.steps,
            max_grad_norm=0.0,
            logging_steps=1,
        ),
        train_dataset=rows,
        optimizers=(optimizer, constant),
    )


class Watch:
    """Records what each step of SGD applied, and what plain torch computes on the rows that all
    ranks were given."""

    def __init__(
        self,
        ctx: Context,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: torch.optim.Optimizer,
        more: Facts,
    ) -> None:
        self.ctx, self.model, self.loss, self.more, self.step = ctx, model, loss, more, 0
        self.reference = copy.deepcopy(model)  # before the hooks, which would be copied, too
        self.left = applied.copied(model)
        self.seen: list[Rows] = []
        model.register_forward_pre_hook(self._given, with_kwargs=True)
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _given(self, _: Any, __: Any, given: dict[str, Any]) -> None:
        self.seen.append({name: given[name].detach().clone() for name in ("input_ids", "labels")})

    def _before(self, *_: Any) -> None:
        self.weights = applied.copied(self.model)

    def _after(self, *_: Any) -> None:
        self.step += 1
        plain = applied.plainly(self._plain_loss, self.weights, self._of_all_ranks())
        before, self.left = self.left, applied.copied(self.model)
        moved = max(float((self.weights[n] - w).abs().max()) for n, w in before.items())
        facts = applied.facts(plain, self.weights, self.left, self.ctx.params.lr)
        self.ctx.record("step", self.step, **self.more(self.seen, plain, moved), **facts)
        self.seen.clear()

    def _of_all_ranks(self) -> list[Rows]:
        """The micro-batches that all ranks were given in this step."""
        if self.ctx.world_size == 1:
            return list(self.seen)
        found: list[Any] = [None] * self.ctx.world_size
        dist.all_gather_object(found, [{k: v.cpu() for k, v in b.items()} for b in self.seen])
        return [{k: v.to(self.ctx.device) for k, v in b.items()} for own in found for b in own]

    def _plain_loss(self, weights: Any, batch: Rows) -> Tensor:
        answer = torch.func.functional_call(self.reference, dict(weights), (), kwargs=batch)
        return self.loss(answer["logits"], batch["labels"])
