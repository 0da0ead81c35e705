"""transformers' Trainer over tiny models with different heads, made in code, on several ranks.

A step has ROWS rows, whatever the number of ranks and micro-batches. Imports torch and
transformers: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from torch import nn

from harness.bugs import api
from scenarios.common.hf_trainer import VOCABULARY, llama
from scenarios.transformers._trainer_sgd import IGNORED, Loss, Rows, sgd

ROWS, LENGTH, LABELS = 8, 8, 4


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


def dataset(head: str, count: int, seed: int, first_label: bool = True) -> list[Rows]:
    """Rows of random tokens [LENGTH], with labels [1] of a sequence or [LENGTH] of its tokens.

    ``first_label`` says whether the first label of a row counts for the Trainer.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = {"sequence": tokens.sum(1, keepdim=True) % LABELS, "token": tokens % LABELS}
    chosen = labels.get(head, tokens).clone()
    if not first_label:
        chosen[:, 0] = IGNORED
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, chosen, strict=True)]


def trainer(
    ctx: api.Context, rows: list[Rows] | None = None, *, smoothing: float = 0.0, **settings: Any
) -> Any:
    """A Trainer whose steps record the number of labels in each micro-batch of this rank."""
    params = ctx.params
    torch.manual_seed(ctx.seed)
    loss = Loss(params.head in NEXT_TOKEN, smoothing)

    def facts(batches: Sequence[Rows], *_: Any) -> dict[str, list[int]]:
        return {"labels": [loss.count(batch["labels"]) for batch in batches]}

    return sgd(
        ctx,
        MODELS[params.head](),
        loss,
        rows or dataset(params.head, ROWS * params.steps, ctx.seed),
        size=ROWS // params.accumulation // ctx.world_size,
        more=facts,
        **settings,
    )


def mean_loss(model: nn.Module, head: str, rows: list[Rows]) -> float:
    """Plain torch's mean loss (nats) of all rows, over the labels that count."""
    device = next(model.parameters()).device
    batch = {name: torch.stack([row[name] for row in rows]).to(device) for name in rows[0]}
    loss = Loss(head in NEXT_TOKEN)
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"])["logits"]
        return float(loss.total(logits, batch["labels"]) / loss.count(batch["labels"]))
