"""Combine one adapter with weight 1, by add_weighted_adapter: is the result that adapter?

Needs torch and peft, and no GPU. The exit code is 3 if the bug is there."""

import peft
import torch
from torch import nn


def times(rslora: bool, combination: str) -> float:
    """The effect of the combined adapter, divided by the adapter's own."""
    torch.manual_seed(0)
    base, rows = nn.Sequential(nn.Linear(8, 8)), torch.randn(16, 8)
    settings = {"use_rslora": rslora, "init_lora_weights": False}  # False: the adapter isn't 0
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["0"], **settings)
    model = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        with_adapter = model(rows)
        with model.disable_adapter():
            without = model(rows)
        model.add_weighted_adapter(["default"], [1.0], "sum", combination_type=combination)
        model.set_adapter("sum")
        return float((model(rows) - without).norm() / (with_adapter - without).norm())


print("peft", peft.__version__)
for combination in ("linear", "svd", "cat"):
    plain, rank_stabilized = times(False, combination), times(True, combination)
    print(f"{combination}: {plain:.4f} times the adapter, with use_rslora {rank_stabilized:.4f}")
has_bug = rank_stabilized > 1.01
print("WRONG: with use_rslora it is sqrt(r) times as large" if has_bug else "right: all are equal")
raise SystemExit(3 if has_bug else 0)
