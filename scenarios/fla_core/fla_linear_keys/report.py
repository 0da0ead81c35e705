"""Normalise fla's linear attention: is the gradient of the keys plain torch's?

Needs torch, fla-core and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from fla.ops.linear_attn import chunk_linear_attn

torch.manual_seed(0)
rows, length, heads, width = 2, 32, 2, 16
size = (rows, length, heads, width)
query, key, value = (torch.rand(size, device="cuda") + 0.1 for _ in range(3))
weights = torch.randn(size, device="cuda")
for leaf in (query, key, value):
    leaf.requires_grad_()

output = chunk_linear_attn(query, key, value, scale=1.0, normalize=True)[0]
scores = torch.einsum("bthd,bshd->bhts", query, key).tril()
divisor = scores.sum(-1, keepdim=True).transpose(1, 2)
plain = torch.einsum("bhts,bshd->bthd", scores, value) / divisor
print(f"fla-core {version('fla-core')}; distances as parts of the norm of plain torch's result")
print(f"output: {((output - plain).norm() / plain.norm()).item():.3g}")
leaves = {"query": query, "key": key, "value": value}
off = {}
for name, leaf in leaves.items():
    (kernel,) = torch.autograd.grad(output, [leaf], weights, retain_graph=True)
    (expected,) = torch.autograd.grad(plain, [leaf], weights, retain_graph=True)
    off[name] = ((kernel - expected).norm() / expected.norm()).item()
    print(f"gradient of the {name}: {off[name]:.3g}")
has_bug = off["key"] > 0.03
print("WRONG: the keys' gradient lacks the divisor" if has_bug else "right: torch's gradients")
raise SystemExit(3 if has_bug else 0)
