"""Compile a model with dropout and a memory budget of 0.1: are its gradients the eager ones?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
import torch._functorch.config
from torch import nn

torch._functorch.config.activation_memory_budget = 0.1
torch.manual_seed(0)
layers: list[nn.Module] = []
for _ in range(4):
    layers += [nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.5)]
model, rows = nn.Sequential(*layers, nn.Linear(32, 1)), torch.randn(12, 32)
# It draws the masks of the eager forward. The default backend, inductor, draws others.
compiled = torch.compile(model, backend="aot_eager")


def gradient(function: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    model.zero_grad()
    loss = (function(rows) - 1).square().mean()
    loss.backward()
    weight: torch.Tensor = next(model.parameters()).grad  # type: ignore[assignment]
    print(f"  loss {loss.item():.6f}, gradient of the first weight {weight.norm():.6f}")
    return weight.clone()


print(f"torch {torch.__version__}, eager and compiled:")
right, came = gradient(model), gradient(compiled)
away = ((came - right).norm() / right.norm()).item()
has_bug = away > 0.01
print(
    f"WRONG: {away:.0%} away, with the same loss"
    if has_bug
    else "right: the gradients are the same"
)
raise SystemExit(3 if has_bug else 0)
