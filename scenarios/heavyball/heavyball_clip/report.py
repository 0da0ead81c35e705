"""Clip gradients with heavyball's l2_clip_ and a threshold of 0.1: do they have that norm?

Needs torch and heavyball, and no GPU. The exit code is 3 if the bug is there.
"""

from importlib.metadata import version

import torch
from heavyball import utils

utils.compile_mode = None  # heavyball's own switch: without torch.compile
has_bug = False
print("heavyball", version("heavyball"), "l2_clip_ with a threshold of 0.1")
for norm in (0.02, 5.0):
    gradient = torch.ones(4) * norm / 2
    (clipped,) = utils.l2_clip_([gradient], 0.1)
    expected = min(norm, 0.1)
    print(f"a gradient of norm {norm} has a norm of {clipped.norm():.3g}, right: {expected}")
    has_bug |= abs(float(clipped.norm()) - expected) > 1e-3 * expected
print("WRONG: they do not have the norms above" if has_bug else "right: they have these norms")
raise SystemExit(3 if has_bug else 0)
