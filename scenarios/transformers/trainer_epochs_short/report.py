"""Train 9 rows for 10 epochs with the Trainer and accumulation: does each row come 10 times?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers

seen: list[int] = []


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x: Any, labels: Any) -> dict[str, torch.Tensor]:
        seen.extend(int(row) for row in x.flatten())
        outputs = self.linear(x)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


settings: Any = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
settings |= {"num_train_epochs": 10, "learning_rate": 1e-6, "report_to": [], "disable_tqdm": True}
settings |= {"save_strategy": "no", "use_cpu": True}
rows = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([0.0])} for n in range(9)]
trainer = transformers.Trainer(
    Model(), transformers.TrainingArguments(tempfile.mkdtemp(), **settings), train_dataset=rows
)
trainer.train()
print(f"transformers {transformers.__version__}: {len(seen)} of 90 rows came, in ", end="")
print(f"{trainer.state.global_step} of 30 steps; epoch {trainer.state.epoch:g} of 10")
print("WRONG: the training was too short" if len(seen) != 90 else "right: all rows came")
raise SystemExit(3 if len(seen) != 90 else 0)
