"""Save Lookahead of pytorch_optimizer and load it as a new process does: are the weights the same?

Needs torch and pytorch-optimizer, and no GPU. The exit code is 3 if the bug is there."""

import importlib.metadata
import io
from collections.abc import Iterator
from typing import Any

import torch
from pytorch_optimizer import Lookahead


def build() -> tuple[Any, Any]:
    """A model with the weight 1, and an optimizer that pulls in every second step."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    return model, Lookahead(torch.optim.SGD(model.parameters(), lr=0.1), k=2, alpha=0.5)


def weights(model: Any, optimizer: Any, steps: int) -> Iterator[float]:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        yield round(model.weight.item(), 3)


print("pytorch-optimizer", importlib.metadata.version("pytorch-optimizer"))
parts, resumed = build(), build()
print(f"before the save: {list(weights(*parts, 5))}")
file = io.BytesIO()
torch.save([part.state_dict() for part in parts], file)
file.seek(0)
for part, state in zip(resumed, torch.load(file, weights_only=False), strict=True):
    part.load_state_dict(state)
whole, loaded = list(weights(*parts, 4)), list(weights(*resumed, 4))
print("after it:", whole, "if resumed", loaded)
print("WRONG: a pull to the start" if loaded != whole else "right: both are the same")
raise SystemExit(3 if loaded != whole else 0)
