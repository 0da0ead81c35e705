"""Records the labels that a model gets, and its loss. Imports torch: import it inside ``run``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from scenarios.trl.eos_masked.labels import IGNORED


def watch(record: Callable[..., None], model: nn.Module) -> None:
    """Record ``step``, as ``labels`` judges it, each time that the model is called.

    Call it before a trainer gets the model, because the trainer may replace its forward.
    """
    steps, plain = count(1), copy.deepcopy(model)

    def note(_: Any, __: Any, keywords: dict[str, Any], answer: Any) -> None:
        labels = keywords["labels"]
        targets = labels[:, 1:].flatten()
        with torch.no_grad():
            weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            inputs: dict[str, Any] = {
                name: keywords[name] for name in ("input_ids", "attention_mask") if name in keywords
            }
            logits = torch.func.functional_call(plain, weights, (), kwargs=inputs).logits.float()
            total = cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")
        items = keywords.get("num_items_in_batch")
        items = (targets != IGNORED).sum() if items is None else items
        record(
            "step",
            next(steps),
            ids=keywords["input_ids"].tolist(),
            labels=labels.tolist(),
            loss=float(answer.loss.detach()),
            reference_loss=float(total) / float(items),
        )

    model.register_forward_hook(note, with_kwargs=True)
