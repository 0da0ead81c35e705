"""Save and load a MinMaxMetric after an epoch: does it still know the highest value?

Needs torch and torchmetrics, and no GPU. The exit code is 3 if the bug is there."""

import torch
import torchmetrics
from torchmetrics import MeanMetric, MinMaxMetric


def epoch(metric: MinMaxMetric, value: float) -> float:
    """The highest value so far, after an epoch with this one."""
    metric.update(torch.tensor(value))
    highest = float(metric.compute()["max"])
    metric.reset()
    return highest


metric, resumed = MinMaxMetric(MeanMetric()), MinMaxMetric(MeanMetric())
print("torchmetrics", torchmetrics.__version__)
print(f"the highest value after an epoch with 0.9: {epoch(metric, 0.9):.4g}")
print(f"the state_dict: {dict(metric.state_dict())}")
resumed.load_state_dict(metric.state_dict())
whole, loaded = epoch(metric, 0.5), epoch(resumed, 0.5)
print(f"after one more epoch, with 0.5: {whole:.4g}; if resumed {loaded:.4g}")
print("WRONG: the highest value is lost" if loaded != whole else "right: the highest value is kept")
raise SystemExit(3 if loaded != whole else 0)
