"""Train a weight with SkipStepAdamW and with torch's AdamW: are the updates of 100 steps equal?

Needs torch and ai2-olmo-core, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from olmo_core.optim import SkipStepAdamW

torch.manual_seed(0)
gradients = torch.randn(100, 64)
options: Any = {"lr": 0.001, "betas": (0.9, 0.95), "weight_decay": 0.0}
weights = [torch.nn.Parameter(torch.zeros(64)) for _ in range(2)]
optimizer = SkipStepAdamW([weights[0]], **options)
torchs = torch.optim.AdamW([weights[1]], **options)
for step, gradient in enumerate(gradients, 1):
    before = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.grad = gradient.clone()
    optimizer.latest_loss = torch.tensor(1.0)
    optimizer.step()
    torchs.step()
    updates = [w.detach() - old for w, old in zip(weights, before, strict=True)]
    ratio = float(updates[0].norm() / updates[1].norm())
    if step in (1, 2, 10, 100):
        print(f"step {step}: {ratio:.4f} times torch's update")
print("ai2-olmo-core", version("ai2-olmo-core"))
is_wrong = abs(ratio - 1) > 0.01
print("WRONG: another update than AdamW's" if is_wrong else "right: AdamW's updates")
raise SystemExit(3 if is_wrong else 0)
