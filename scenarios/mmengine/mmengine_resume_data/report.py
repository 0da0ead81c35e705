"""Stop a training by iterations and resume it with mmengine: do new rows come?

Needs torch and mmengine, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile
from typing import Any

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # mmengine's checkpoints have its log
import mmengine
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner

folder, seen = tempfile.mkdtemp(), list[int]()


class Model(BaseModel):  # type: ignore[misc, no-any-unimported, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, row: Any, mode: str) -> dict[str, torch.Tensor]:
        seen.append(int(row[0]))
        return {"loss": self.linear(torch.tensor([float(row[0])])).square().sum()}


for steps in (3, 8):
    loader: Any = {"sampler": {"type": "DefaultSampler", "shuffle": False}, "num_workers": 0}
    loader |= {"batch_size": 1, "dataset": [{"row": row} for row in range(8)]}
    hook = {"checkpoint": {"type": "CheckpointHook", "interval": steps, "by_epoch": False}}
    options: Any = {"train_cfg": {"by_epoch": False, "max_iters": steps}, "default_hooks": hook}
    options |= {"optim_wrapper": {"optimizer": {"type": "SGD", "lr": 1e-3}}, "resume": steps > 3}
    options |= {"train_dataloader": loader, "experiment_name": str(steps), "log_level": "ERROR"}
    Runner(Model(), folder, **options).train()
print(f"mmengine {mmengine.__version__}, a stop after 3 steps, rows of the steps: {seen}")
print("WRONG: rows come twice" if seen != list(range(8)) else "right: each row comes once")
raise SystemExit(3 if seen != list(range(8)) else 0)
