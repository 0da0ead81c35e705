"""Evaluate a layer with spectral_norm before it is trained: is the norm of its weight 1?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.nn import utils

norms = {}
for module in (utils, utils.parametrizations):
    torch.manual_seed(0)
    layer = module.spectral_norm(torch.nn.Linear(32, 32), n_power_iterations=50).eval()
    layer(torch.ones(1, 32))
    norms[module] = float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
    print(f"torch {torch.__version__}, {module.__name__}.spectral_norm: {norms[module]:.4f}")
wrong = norms[utils] > 1.1
print("WRONG: the norm is not 1" if wrong else "right: the norm is 1")
raise SystemExit(3 if wrong else 0)
