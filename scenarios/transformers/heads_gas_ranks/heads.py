"""transformers' Trainer over tiny models with different heads, made in code, on several ranks.

A step has ROWS rows, whatever the number of ranks and micro-batches. Imports torch and
transformers: import it inside ``run``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from harness.spec import Context, Lane
from scenarios.common import applied
from scenarios.transformers.trainer_gas_twice.trainer import llama, next_token_loss

ROWS, VOCABULARY, LENGTH, LABELS = 8, 32, 8, 4

Rows = dict[str, Tensor]


def _bert(kind: str) -> nn.Module:
    """A BERT of one layer, without dropout, with the head ``kind``."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=LABELS,
    )
    return getattr(transformers, f"BertFor{kind}")(config)


def _gpt2() -> nn.Module:
    """A GPT-2 of one layer, without dropout."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


NEXT_TOKEN = ("llama", "gpt2")
"""The models that predict the next token: the first label of a row is never predicted."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "sequence": lambda: _bert("SequenceClassification"),
    "token": lambda: _bert("TokenClassification"),
    "masked_lm": lambda: _bert("MaskedLM"),
    "llama": llama,
    "gpt2": _gpt2,
}


def dataset(head: str, count: int, seed: int) -> list[Rows]:
    """Rows of random tokens [LENGTH], with labels [1] of a sequence or [LENGTH] of its tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = {"sequence": tokens.sum(1, keepdim=True) % LABELS, "token": tokens % LABELS}
    return [
        {"input_ids": row, "labels": label}
        for row, label in zip(tokens, labels.get(head, tokens), strict=True)
    ]


def mean_loss(head: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss (nats) that the head's documentation promises."""
    if head in NEXT_TOKEN:
        return next_token_loss(logits, labels)
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def trainer(ctx: Context, head: str, accumulation: int, steps: int, lr: float) -> Any:
    """A Trainer with SGD at a constant rate, without clipping, watched step by step."""
    torch.manual_seed(ctx.seed)
    model = MODELS[head]().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    more: dict[str, Any] = {}
    if ctx.world_size > 1:
        more["ddp_backend"] = ctx.lane.backend
    if "use_cpu" in inspect.signature(TrainingArguments).parameters:
        more["use_cpu"] = ctx.lane is Lane.CPU  # before 4.34 it was no_cuda
    arguments = TrainingArguments(
        output_dir=str(ctx.folder / "out"),
        seed=ctx.seed,
        report_to=[],
        per_device_train_batch_size=ROWS // accumulation // ctx.world_size,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **more,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    rows = dataset(head, ROWS * steps, ctx.seed)
    Watch(ctx, head, model, optimizer, lr)
    return Trainer(
        model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, constant)
    )


class Watch:
    """Records what each step of the optimizer applied, and what plain torch computes on the rows
    that all ranks were given."""

    def __init__(
        self, ctx: Context, head: str, model: nn.Module, optimizer: torch.optim.Optimizer, lr: float
    ) -> None:
        self.ctx, self.head, self.model, self.lr, self.step = ctx, head, model, lr, 0
        self.reference = copy.deepcopy(model)  # before the hooks, which would be copied, too
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
        plain = applied.plainly(self._loss, self.weights, self._of_all_ranks())
        facts = applied.facts(plain, self.weights, applied.copied(self.model), self.lr)
        self.ctx.record("step", self.step, micro_batches=len(self.seen), **facts)
        self.seen.clear()

    def _of_all_ranks(self) -> list[Rows]:
        """The micro-batches that all ranks were given in this step."""
        if self.ctx.world_size == 1:
            return list(self.seen)
        found: list[Any] = [None] * self.ctx.world_size
        dist.all_gather_object(found, [{k: v.cpu() for k, v in b.items()} for b in self.seen])
        return [{k: v.to(self.ctx.device) for k, v in b.items()} for own in found for b in own]

    def _loss(self, weights: Any, batch: Rows) -> Tensor:
        inputs = {"input_ids": batch["input_ids"]}
        answer = torch.func.functional_call(self.reference, dict(weights), (), kwargs=inputs)
        return mean_loss(self.head, answer["logits"], batch["labels"])
