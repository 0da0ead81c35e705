"""Train in bf16, and then, in the same process, without it: in which precision is the second?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import inspect
import tempfile
from typing import Any

import torch
import transformers

types: list[torch.dtype] = []


class Model(torch.nn.Linear):
    def forward(self, x: Any, labels: Any = None) -> Any:
        outputs = super().forward(x)
        types.append(outputs.dtype)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


rows = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([0.0])} for n in range(8)]
settings: Any = {"max_steps": 1, "report_to": [], "disable_tqdm": True}
names = inspect.signature(transformers.TrainingArguments).parameters
settings["use_cpu" if "use_cpu" in names else "no_cuda"] = True  # its name before 4.34


def train(**precision: Any) -> None:
    arguments = transformers.TrainingArguments(tempfile.mkdtemp(), **settings, **precision)
    transformers.Trainer(Model(1, 1), arguments, train_dataset=rows).train()


train(bf16=True)
train()
print(f"transformers {transformers.__version__}: outputs are {types[0]}, then {types[-1]}")
wrong = types[-1] != torch.float32
print("WRONG: the second training is in bf16" if wrong else "right: the second is in fp32")
raise SystemExit(3 if wrong else 0)
