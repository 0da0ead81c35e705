"""Concatenate the output of a causal convolution with other columns: is its gradient right?

Needs torch, fla-core and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from fla.modules.conv import causal_conv1d

torch.manual_seed(0)
rows, length, width, taps = 2, 16, 32, 4
x, others = (torch.randn(rows, length, width, device="cuda") for _ in range(2))
filter = torch.randn(width, taps, device="cuda")
weights = torch.randn(rows, length, 2 * width, device="cuda")


def plain(x: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(x.transpose(1, 2), (taps - 1, 0))
    return torch.nn.functional.conv1d(padded, filter[:, None], groups=width).transpose(1, 2)


gradients: list[Any] = []
for convolution in (lambda x: causal_conv1d(x, filter)[0], plain):
    leaf = x.clone().requires_grad_()
    output = convolution(leaf)
    (torch.cat([output, others], dim=-1) * weights).sum().backward()
    gradients.append(leaf.grad)
    print(f"the sum of the squared outputs is {output.square().sum().item():.3f}")
kernel, expected = gradients
off = ((kernel - expected).norm() / expected.norm()).item()
print(f"fla-core {version('fla-core')}: the gradient of x is off by {off:.3g} of its norm")
has_bug = off > 0.03
print("WRONG: the gradient is read without strides" if has_bug else "right: torch's gradient")
raise SystemExit(3 if has_bug else 0)
