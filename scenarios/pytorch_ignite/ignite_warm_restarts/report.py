"""Wrap torch's CosineAnnealingWarmRestarts in ignite's LRScheduler: does the rate change?

Needs torch and pytorch-ignite, and no GPU. The exit code is 3 if the bug is there."""

import ignite
import torch
from ignite.engine import Engine, Events
from ignite.handlers.param_scheduler import LRScheduler
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

optimizer, plain = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0) for _ in "12")
scheduler = CosineAnnealingWarmRestarts(plain, T_0=4)
expected = []
for _ in range(10):
    expected.append(round(plain.param_groups[0]["lr"], 3))
    plain.step()
    scheduler.step()

rates: list[float] = []
engine = Engine(lambda engine, batch: rates.append(round(optimizer.param_groups[0]["lr"], 3)))
wrapper = LRScheduler(CosineAnnealingWarmRestarts(optimizer, T_0=4))
engine.add_event_handler(Events.ITERATION_STARTED, wrapper)
engine.run([0] * 10, max_epochs=1)

print("pytorch-ignite", ignite.__version__)
print(f"torch's scheduler: {expected}")
print(f"wrapped by ignite: {rates}")
has_bug = len(set(rates)) == 1
print("WRONG: the rate never changes" if has_bug else "right: the rate falls and starts again")
raise SystemExit(3 if has_bug else 0)
