"""transformers' Trainer over a tiny model that is made in code: no hub, no download.

Rows of one length, so that the mean of the micro-batches' means is that of the batch. What the
optimizer applies is recorded step by step, beside what plain torch has on the rows that the model
was really given. Imports torch and transformers: import it from a scenario's ``run``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from harness.spec import Context, Lane
from scenarios.oracles import applied

VOCABULARY, LENGTH, HIDDEN = 32, 16, 16
IGNORED = -100
"""The label of a token that counts for nothing."""

Rows = dict[str, Tensor]


def llama() -> LlamaForCausalLM:
    """Two layers; it takes the number of items as a keyword of its loss."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
        attention_dropout=0.0, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.float32)


class Plain(nn.Module):
    """A module of one's own, whose loss is its own mean, and which takes no keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids))[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


MODELS = {"llama": llama, "plain": Plain}


def rows(count: int, seed: int) -> list[Rows]:
    """Rows of random tokens, [length] each.

    The first label predicts nothing; it is masked, as some releases count it as an item.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = tokens.clone()
    labels[:, 0] = IGNORED
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def trainer(ctx: Context, model: nn.Module, lr: float, size: int, steps: int, **told: Any) -> Any:
    """A Trainer with SGD at a constant rate, no clipping and no reports, watched step by step.

    ``size`` is a micro-batch's, in rows; ``told`` goes to TrainingArguments.
    """
    model = model.to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    Watch(ctx, model, optimizer)
    arguments = TrainingArguments(
        output_dir=str(ctx.folder / "out"), use_cpu=ctx.lane is Lane.CPU, seed=ctx.seed,
        report_to=[], per_device_train_batch_size=size, max_steps=steps, max_grad_norm=0.0,
        logging_steps=1, save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        remove_unused_columns=False, **told,
    )  # fmt: skip
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    count = size * steps * arguments.gradient_accumulation_steps * ctx.world_size
    return Trainer(
        model=model, args=arguments, train_dataset=rows(count, ctx.seed),
        optimizers=(optimizer, constant),
    )  # fmt: skip


def logged(made: Any) -> list[float]:
    """The losses that a Trainer has logged, one a step."""
    return [float(line["loss"]) for line in made.state.log_history if "loss" in line]


class Watch:
    """Sees what the model is given, and at each step of the optimizer what it applies."""

    def __init__(self, ctx: Context, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.ctx, self.model, self.step = ctx, model, 0
        self.reference = copy.deepcopy(model)  # before the hooks, which would be copied, too
        self.seen: list[Rows] = []
        model.register_forward_pre_hook(self._given, with_kwargs=True)
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _given(self, _: Any, __: Any, given: dict[str, Any]) -> None:
        self.seen.append({name: given[name].detach().clone() for name in ("input_ids", "labels")})

    def _before(self, *_: Any) -> None:
        self.weights = applied.copied(self.model)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.step += 1
        plain = applied.plainly(self._loss, self.weights, self.seen)
        rate = optimizer.param_groups[0]["lr"]
        tokens = [int((one["labels"][:, 1:] != IGNORED).sum()) for one in self.seen]
        facts = applied.facts(plain, self.weights, applied.copied(self.model), rate)
        self.ctx.record("step", self.step, tokens=tokens, losses=plain.losses, **facts)
        self.seen.clear()

    def _loss(self, weights: Any, batch: Rows) -> Tensor:
        answer = torch.func.functional_call(self.reference, dict(weights), (), kwargs=batch)
        loss: Tensor = answer["loss"]
        return loss
