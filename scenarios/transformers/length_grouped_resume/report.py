"""Resume a Trainer with group_by_length in its second epoch: does each row come once?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import inspect
import os
import tempfile

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # for releases older than torch 2.6
tokens = [torch.full((2 + number * 5 % 7,), number) for number in range(24)]  # 2 to 8 long
rows = [{"input_ids": row, "labels": row} for row in tokens]
sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
old = "group_by_length" in inspect.signature(transformers.TrainingArguments).parameters
group = {"group_by_length": True} if old else {"train_sampling_strategy": "group_by_length"}


def order(folder: str, resume: str | None) -> list[int]:
    """The numbers of the rows in the order in which the Trainer takes them, 4 in each step."""
    numbers: list[int] = []

    def collate(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        numbers.extend(int(row["input_ids"][0]) for row in batch)
        return {k: pad_sequence([row[k] for row in batch], batch_first=True) for k in batch[0]}

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    some = {"per_device_train_batch_size": 4, "max_steps": 12, "save_steps": 8, "report_to": []}
    args = transformers.TrainingArguments(folder, use_cpu=True, **some, **group)
    transformers.Trainer(model, args, train_dataset=rows, data_collator=collate).train(resume)
    return numbers


folder = tempfile.mkdtemp()
count = len({*order(folder, None)[-24:-16], *order(folder, f"{folder}/checkpoint-8")[-16:]})
print(f"transformers {transformers.__version__}: {count} of 24 rows came in the second epoch")
print("WRONG: some came twice, others never" if count < 24 else "right: each came once")
raise SystemExit(3 if count < 24 else 0)
