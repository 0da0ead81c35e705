"""Train T5 with a compute_loss_func: how many labels does transformers' Trainer count?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers

sizes: Any = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1}
config = transformers.T5Config(**sizes, num_heads=2, decoder_start_token_id=0)
counts: list[Any] = []


def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any) -> Any:
    """The documented way: the sum over all labels, divided by their number."""
    counts.append((labels.numel(), int(num_items_in_batch)))
    logits = outputs["logits"].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    return total / num_items_in_batch


row = dict.fromkeys(("input_ids", "decoder_input_ids", "labels"), torch.tensor([5, 6, 7, 8]))
settings: Any = {"per_device_train_batch_size": 2, "max_steps": 1, "report_to": []}
transformers.Trainer(
    transformers.T5ForConditionalGeneration(config),
    transformers.TrainingArguments(tempfile.mkdtemp(), use_cpu=True, **settings),
    train_dataset=[row] * 2,  # type: ignore[arg-type]
    compute_loss_func=loss,
).train()
labels, count = counts[0]
print(f"transformers {transformers.__version__}: {labels} labels, and the Trainer counts {count}")
print("WRONG: the loss is too large" if count < labels else "right: it counts all")
raise SystemExit(3 if count < labels else 0)
