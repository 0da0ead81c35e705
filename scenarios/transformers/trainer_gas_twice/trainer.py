"""transformers' Trainer over a tiny model that is made in code, without any download.

All rows have the same length, so the mean of the micro-batches' means is the mean of the batch.
Each step records what the optimizer applied, what plain torch computes on the rows that the model
was given, and which rows these were. Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from harness.spec import Context, Lane
from scenarios.common import applied

VOCABULARY, LENGTH, HIDDEN = 32, 16, 16
IGNORED = -100
"""The label of a token that does not count."""

Rows = dict[str, Tensor]


def llama() -> LlamaForCausalLM:
    """A LLaMA of two layers; its loss takes the number of items as a keyword."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
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


class Plain(nn.Module):
    """A module of one's own: its loss is a mean, and it takes no keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids))
        return {"loss": next_token_loss(logits, labels), "logits": logits}


MODELS = {"llama": llama, "plain": Plain}


def rows(count: int, seed: int) -> list[Rows]:
    """Rows of random tokens, [length] each.

    The first label predicts nothing. It is masked, because some releases count it as an item.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def trainer(
    ctx: Context, model: nn.Module, lr: float, size: int, steps: int, accumulation: int
) -> Any:
    """A Trainer with SGD at a constant rate, without clipping, watched step by step.

    A step has ``accumulation`` micro-batches of ``size`` rows each.
    """
    model = model.to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    arguments = TrainingArguments(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is Lane.CPU,
        seed=ctx.seed,
        report_to=[],
        per_device_train_batch_size=size,
        max_steps=steps,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        gradient_accumulation_steps=accumulation,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    count = size * steps * accumulation * ctx.world_size
    dataset = rows(count, ctx.seed)
    Watch(ctx, model, optimizer, lr, dataset)
    return Trainer(
        model=model, args=arguments, train_dataset=dataset, optimizers=(optimizer, constant)
    )


def logged(made: Any) -> list[float]:
    """The losses that a Trainer has logged, one for each step."""
    return [float(line["loss"]) for line in made.state.log_history if "loss" in line]


class Watch:
    """Watches what the model is given, and what each step of the optimizer applies."""

    def __init__(
        self,
        ctx: Context,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr: float,
        dataset: list[Rows],
    ) -> None:
        self.ctx, self.model, self.step, self.lr = ctx, model, 0, lr
        self.reference = copy.deepcopy(model)  # before the hooks, which would be copied, too
        self.left = applied.copied(model)
        self.numbers = {_name(one["input_ids"], one["labels"]): n for n, one in enumerate(dataset)}
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
        plain = applied.plainly(self._loss, self.weights, self.seen)
        tokens = [int((one["labels"][:, 1:] != IGNORED).sum()) for one in self.seen]
        before, self.left = self.left, applied.copied(self.model)
        facts = applied.facts(plain, self.weights, self.left, self.lr)
        self.ctx.record(
            "step",
            self.step,
            tokens=tokens,
            losses=plain.losses,
            rows=self._rows(),
            aside=max(float((self.weights[n] - w).abs().max()) for n, w in before.items()),
            **facts,
        )
        self.seen.clear()

    def _rows(self) -> list[int]:
        """The numbers in the dataset of the rows that were given; -1 for a row that is not in
        it."""
        given = [
            pair for one in self.seen for pair in zip(one["input_ids"], one["labels"], strict=True)
        ]
        return [self.numbers.get(_name(*pair), -1) for pair in given]

    def _loss(self, weights: Any, batch: Rows) -> Tensor:
        answer = torch.func.functional_call(self.reference, dict(weights), (), kwargs=batch)
        return next_token_loss(answer["logits"], batch["labels"])


def _name(tokens: Tensor, labels: Tensor) -> tuple[int, ...]:
    """What distinguishes a row from all others."""
    return (*tokens.tolist(), *labels.tolist())
