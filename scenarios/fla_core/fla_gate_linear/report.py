"""Train the fused norm, gate and projection of fla: is the projection's gradient right?

Needs torch, fla-core and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from fla.modules.fused_norm_gate import rms_norm_swish_gate_linear

torch.manual_seed(0)
rows, width, out = 16, 32, 8
x, gate = (torch.randn(rows, width, device="cuda") for _ in range(2))
norm, linear = torch.randn(width, device="cuda"), torch.randn(out, width, device="cuda")
weights = torch.randn(rows, out, device="cuda")

leaf = linear.clone().requires_grad_()
output = rms_norm_swish_gate_linear(x, gate, norm, None, leaf, None, eps=1e-5)
(kernel,) = torch.autograd.grad(output, [leaf], weights)
normed = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm
expected = weights.T @ (normed * torch.nn.functional.silu(gate))
without_gate = weights.T @ normed


def off(gradient: torch.Tensor) -> float:
    return ((kernel - gradient).norm() / gradient.norm()).item()


print(f"fla-core {version('fla-core')}: distances of the projection's gradient")
print(
    f"from plain torch's {off(expected):.3g}, from the one without the gate {off(without_gate):.3g}"
)
has_bug = off(expected) > 0.03
print("WRONG: the gate is missing in the gradient" if has_bug else "right: torch's gradient")
raise SystemExit(3 if has_bug else 0)
