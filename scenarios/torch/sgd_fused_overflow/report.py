"""Skip the first step of SGD, as GradScaler does at first: is the next step the right one?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch


def weight_after(fused: bool) -> float:
    """A weight, which was 0, after a step that overflows and a step with the gradient 1."""
    weight = torch.zeros(1, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (float("inf"), 1.0):
        sgd.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(sgd)
        scaler.update()
        print(f"  fused={fused}, gradient {factor}: weight {weight.item()}")
    return weight.item()


print(f"torch {torch.__version__}: the first step is skipped, the second one should give -1")
torch.use_deterministic_algorithms(True)  # fills memory that nobody initialises with NaN
plain, fused = weight_after(False), weight_after(True)
print("right: both give -1" if fused == plain else "WRONG: old memory was added")
raise SystemExit(3 if fused != plain else 0)
