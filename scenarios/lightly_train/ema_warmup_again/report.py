"""Save and load lightly-train's moving average after 100 updates: does it go on as before?

Needs torch and lightly-train, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

import torch
from lightly_train._task_models.object_detection_components.ema import ModelEMA


def main() -> tuple[float, float]:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    average = ModelEMA(model, decay=0.99, warmups=10)
    for _ in range(100):
        average.update(model)
    resumed = ModelEMA(model, decay=0.99, warmups=10)
    resumed.load_state_dict(average.state_dict())
    torch.nn.init.ones_(model.weight)
    average.update(model)
    resumed.update(model)
    return average.model.weight.item(), resumed.model.weight.item()


if __name__ == "__main__":
    whole, resumed = main()
    has_bug = abs(whole - resumed) > 1e-3
    print(f"lightly-train {version('lightly-train')}: {whole:.4f}, and {resumed:.4f} if resumed")
    print("WRONG: a resume changes the average" if has_bug else "right: both are equal")
    raise SystemExit(3 if has_bug else 0)
