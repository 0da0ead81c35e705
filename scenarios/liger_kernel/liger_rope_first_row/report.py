"""Rotate two rows with different positions by Liger's kernel: does each have its own?

Needs torch, liger-kernel and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from liger_kernel.ops.rope import LigerRopeFunction

torch.manual_seed(0)
rows, heads, length, width = 2, 2, 8, 16
query = torch.randn(rows, heads, length, width, device="cuda")
positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 0, 1, 2, 3, 4]], device="cuda")
rates = 10000 ** -(torch.arange(0, width, 2, device="cuda") / width)
angles = (positions[..., None] * rates).repeat(1, 1, 2)


def rotated(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = query.chunk(2, dim=-1)
    return query * cos[:, None] + torch.cat([-right, left], dim=-1) * sin[:, None]


kernel = LigerRopeFunction.apply(query.clone(), query.clone(), angles.cos(), angles.sin())[0]
plain, of_first = (rotated(part.cos(), part.sin()) for part in (angles, angles[:1]))
print(f"liger-kernel {version('liger-kernel')}; the second row has two documents")
for row in range(rows):
    off, by_first = ((kernel - right)[row].abs().max().item() for right in (plain, of_first))
    print(f"row {row}: off by {off:.3g}; from the first row's positions by {by_first:.3g}")
has_bug = not torch.allclose(kernel, plain, rtol=1e-3, atol=1e-3)
print("WRONG: rows have the first row's positions" if has_bug else "right: each has its positions")
raise SystemExit(3 if has_bug else 0)
