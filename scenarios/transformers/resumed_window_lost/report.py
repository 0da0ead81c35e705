"""Train 10 rows for 2 epochs with 4 batches a step, and resume after step 1: are there 6 steps?

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


rows = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([0.0])} for n in range(10)]
settings: Any = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
settings |= {"max_steps": 6, "learning_rate": 1e-4, "report_to": [], "disable_tqdm": True}
settings |= {"save_steps": 1, "use_cpu": True, "logging_strategy": "no"}


def steps(folder: str, resume: str | None = None) -> int:
    """How many steps the training made, with those before the checkpoint."""
    arguments = transformers.TrainingArguments(folder, **settings)
    trainer = transformers.Trainer(Model(), arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.state.global_step


folder = tempfile.mkdtemp()
whole, resumed = steps(folder), steps(tempfile.mkdtemp(), f"{folder}/checkpoint-1")
print(f"transformers {transformers.__version__}: {whole} steps; resumed after 1: {resumed}")
print("WRONG: a step is missing" if resumed < whole else "right: as many after a resume")
raise SystemExit(3 if resumed < whole else 0)
