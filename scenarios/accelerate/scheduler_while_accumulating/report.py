"""Step a prepared scheduler inside accumulate(): does it step once for each optimizer step?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import accelerate
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

STEPS = 8  # of the optimizer: the rate falls from 1 to 0 over them


def rates(accumulation: int) -> list[float]:
    """The learning rate with which the optimizer takes each of its steps."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    plain = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(plain.parameters(), lr=1.0)
    linear = LambdaLR(sgd, lambda done: max(0.0, 1 - done / STEPS))
    data = TensorDataset(torch.ones(STEPS * accumulation, 4))
    model, optimizer, loader = accelerator.prepare(plain, sgd, DataLoader(data))
    scheduler = accelerator.prepare_scheduler(linear)
    history: list[float] = []
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            if accelerator.sync_gradients:
                history.append(sgd.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return history


print("accelerate", accelerate.__version__)
by_accumulation = {accumulation: rates(accumulation) for accumulation in (1, 2, 4)}
for accumulation, series in by_accumulation.items():
    print(f"gradient_accumulation_steps={accumulation}: rates", *(f"{rate:.4g}" for rate in series))
has_bug = by_accumulation[4] != by_accumulation[1]
print("WRONG: it steps with each micro-batch" if has_bug else "right: all have the same rates")
raise SystemExit(3 if has_bug else 0)
