"""Train your own module for a step on 8 rows, in 1, 2 or 4 micro-batches: are the updates equal?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import torch
import transformers
from torch import Tensor, nn

data = torch.Generator().manual_seed(0)
rows = [{"x": torch.randn(4, generator=data), "labels": torch.ones(1)} for _ in range(8)]
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_steps": 1}


class Regression(nn.Linear):
    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": nn.functional.mse_loss(super().forward(x), labels)}


def update(steps: int) -> tuple[Tensor, float]:
    """What one step of SGD adds to the weights, and the logged loss."""
    torch.manual_seed(0)
    model = Regression(4, 1)
    before = model.weight.detach().clone()
    batch = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": 8 // steps}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **batch, **once)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = transformers.Trainer(model, args, train_dataset=rows, optimizers=(sgd, None))
    trainer.train()
    return model.weight.detach() - before, trainer.state.log_history[0]["loss"]


updates = {steps: update(steps) for steps in (1, 2, 4)}
times = {k: round(float(updates[k][0].norm() / updates[1][0].norm()), 4) for k in updates}
print(f"transformers {transformers.__version__}: times the right update for 1, 2, 4: {times}")
print("logged losses:", {k: loss for k, (_, loss) in updates.items()})
print("WRONG: accumulation multiplies the update" if times[4] > 3.9 else "right: all are equal")
raise SystemExit(3 if times[4] > 3.9 else 0)
