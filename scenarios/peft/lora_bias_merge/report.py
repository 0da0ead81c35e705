"""Train an adapter with lora_bias and merge it: does the model give the same outputs?

Needs torch and peft, and no GPU. The exit code is 3 if the bug is there."""

import peft
import torch
from torch import nn
from torch.nn.functional import mse_loss


def compare(bias: bool, alpha: int) -> float:
    """How far the merged model's outputs are off, as a part of the adapter's effect."""
    torch.manual_seed(0)
    rows, labels = torch.randn(2, 16, 8)
    base = nn.Sequential(nn.Linear(8, 8))
    config = peft.LoraConfig(r=4, lora_alpha=alpha, target_modules=["0"], lora_bias=bias)
    model = peft.get_peft_model(base, config)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        adam.zero_grad()
        mse_loss(model(rows), labels).backward()
        adam.step()
    with torch.no_grad(), model.disable_adapter():
        without = model(rows)
    with torch.no_grad():
        trained, merged = model(rows), model.merge_and_unload()(rows)
    was, loss = mse_loss(trained, labels), mse_loss(merged, labels)
    apart = float((merged - trained).norm() / (trained - without).norm())
    settings = f"r=4, lora_alpha={alpha}, lora_bias={bias}"
    print(f"{settings}: loss {was:.4f}, merged {loss:.4f}; outputs are {apart:.4f} apart")
    return apart


print("peft", peft.__version__)
compare(False, 16)
compare(True, 4)
has_bug = compare(True, 16) > 1e-3
print("WRONG: the merge changes the model" if has_bug else "right: the merged model is the same")
raise SystemExit(3 if has_bug else 0)
