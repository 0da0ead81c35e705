"""Clip the gradients of rows of tokens with Opacus, by hooks and as ghosts: are they equal?

Needs torch and opacus, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import opacus
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows, labels = torch.randn(8, 6, 4), torch.randint(3, (8,))
weights = torch.nn.Linear(4, 3).state_dict()


def gradient(mode: str) -> Any:
    """The clipped gradient of a linear layer over the tokens, whose mean is classified."""
    layer = torch.nn.Linear(4, 3)
    layer.load_state_dict(weights)
    loss: Any = torch.nn.CrossEntropyLoss()
    options: Any = {"criterion": loss} if mode == "ghost" else {}
    options |= {"data_loader": DataLoader(TensorDataset(rows), batch_size=8)}
    options |= {"noise_multiplier": 0.0, "max_grad_norm": 1.0, "poisson_sampling": False}
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    engine = opacus.PrivacyEngine()
    private: Any = engine.make_private(
        module=layer, optimizer=sgd, grad_sample_mode=mode, **options
    )
    model, optimizer, *criterion, _ = private
    optimizer.zero_grad()
    (criterion[0] if criterion else loss)(4 * model(rows).mean(1), labels).backward()
    optimizer.step()
    return layer.bias.grad


norms = {mode: round(float(gradient(mode).norm()), 4) for mode in ("hooks", "ghost")}
print(f"opacus {opacus.__version__}: the norm of the bias' clipped gradient: {norms}")
is_wrong = abs(norms["ghost"] - norms["hooks"]) > 0.001
print("WRONG: ghosts are clipped too little" if is_wrong else "right: both clip alike")
raise SystemExit(3 if is_wrong else 0)
