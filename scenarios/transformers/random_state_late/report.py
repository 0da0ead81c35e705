"""Stop in an epoch, and resume: are the random numbers of the rows those without a stop?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

from os import chdir
from tempfile import mkdtemp
from typing import Any

import torch
import transformers


class Rows(list[int]):
    def __getitem__(self, row: Any) -> Any:
        return {"x": torch.stack([torch.tensor(float(row)), torch.rand(())])}  # an augmentation


class Model(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        self.rows = [*getattr(self, "rows", []), (int(x[0, 0]), round(float(x[0, 1]), 4))]
        return {"loss": super().forward(x).square().mean()}


def rows(folder: str, resume: str | None = None) -> Any:
    settings: Any = {"per_device_train_batch_size": 1, "max_steps": 9, "save_steps": 3}
    settings |= {"learning_rate": 1e-4, "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(folder, remove_unused_columns=False, **settings)
    trainer = transformers.Trainer(model := Model(2, 1), arguments, train_dataset=Rows(range(12)))
    trainer.train(resume_from_checkpoint=resume)
    return model.rows


chdir(mkdtemp())
whole, resumed = rows("run")[3:], rows("resumed", "run/checkpoint-3")
print(f"transformers {transformers.__version__}: from step 4 on, each row and its random number")
print("without a stop:", whole, "\nresumed:       ", resumed)
has_bug = resumed != whole and dict(resumed).keys() == dict(whole).keys()
print("WRONG: the rows have other numbers" if has_bug else "right: the same")
raise SystemExit(3 if has_bug else 0)
