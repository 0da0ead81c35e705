"""Save with batches of 1 and 4 micro-batches, resume with a batch of 4: are there 8 steps?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x: Any, labels: Any) -> dict[str, torch.Tensor]:
        outputs = self.linear(x)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


rows = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([0.0])} for n in range(16)]
settings: Any = {"num_train_epochs": 2, "learning_rate": 1e-4, "report_to": []}
settings |= {"save_steps": 1, "use_cpu": True, "logging_strategy": "no", "disable_tqdm": True}


def planned(folder: str, batch: int, resume: str | None = None) -> int:
    """The steps of a training on four rows a step."""
    micro = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 4 // batch}
    arguments = transformers.TrainingArguments(folder, **settings, **micro)
    trainer = transformers.Trainer(Model(), arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.state.max_steps


folder = tempfile.mkdtemp()
whole, resumed = planned(folder, 1), planned(tempfile.mkdtemp(), 4, f"{folder}/checkpoint-2")
print(f"transformers {transformers.__version__}: {whole} steps of 4 rows; resumed: {resumed}")
print("WRONG: the old batch size is used" if resumed != whole else "right: as many steps")
raise SystemExit(3 if resumed != whole else 0)
