"""Checkpoint a block that ends with RReLU: is its gradient the one without checkpointing?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.utils.checkpoint import checkpoint

torch.use_deterministic_algorithms(True)  # fills memory that nobody initialises with NaN


def gradient(checkpointed: bool) -> torch.Tensor:
    torch.manual_seed(0)
    layer, rows = torch.nn.Linear(4, 4), torch.randn(8, 4, requires_grad=True)
    block = torch.nn.Sequential(layer, torch.nn.RReLU())
    output = checkpoint(block, rows, use_reentrant=False) if checkpointed else block(rows)
    loss = output.square().mean()
    loss.backward()
    weight: torch.Tensor = layer.weight.grad  # type: ignore[assignment]
    print(f"  checkpointed={checkpointed}: loss {loss.item():.4f}, gradient {weight.norm():.4f}")
    return weight


print(f"torch {torch.__version__}, a linear layer and RReLU:")
right, came = gradient(False), gradient(True)
has_bug = not torch.equal(came, right)
print("WRONG: slopes were never initialised" if has_bug else "right: as without checkpointing")
raise SystemExit(3 if has_bug else 0)
