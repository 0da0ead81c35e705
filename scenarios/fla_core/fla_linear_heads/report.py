"""Normalise fla's linear attention over equal values: is the output their mean?

Needs torch, fla-core and a GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from fla.ops.linear_attn import chunk_linear_attn

torch.manual_seed(0)
rows, length, heads, width = 1, 32, 2, 16
query, key = (torch.rand(rows, length, heads, width, device="cuda") + 0.1 for _ in range(2))
value = torch.ones(rows, length, heads, width, device="cuda")
output = chunk_linear_attn(query, key, value, normalize=True)[0]
print(f"fla-core {version('fla-core')}: all values are 1, so that each output must be 1")
for head in range(heads):
    first, last = (output[0, position, head, 0].item() for position in (0, -1))
    print(f"head {head}: {first:.3f} at the first position, {last:.3f} at the last")
has_bug = not torch.allclose(output, value, atol=0.03)
print("WRONG: the outputs are no means" if has_bug else "right: the outputs are means of values")
raise SystemExit(3 if has_bug else 0)
