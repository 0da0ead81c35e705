"""Take a step of NeMo Automodel's recipe for classification, with one micro-batch and with 4.

Needs torch and nemo-automodel, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from nemo_automodel.recipes.llm.train_seq_cls import TrainFinetuneRecipeForSequenceClassification


class Classifier(torch.nn.Linear):
    def forward(self, input_ids: Any, attention_mask: Any) -> Any:  # type: ignore[override]
        return super().forward(input_ids.float() * attention_mask)


def change(copies: int) -> float:
    """How far a step moves the weights if a micro-batch comes so many times."""
    torch.manual_seed(0)
    before = (model := Classifier(3, 2)).weight.detach().clone()
    recipe: Any = object.__new__(TrainFinetuneRecipeForSequenceClassification)
    recipe.__dict__.update(
        dict.fromkeys(["_get_dp_group_size", "_get_cp_group_size"], lambda **_: 1),
        _get_pp_rank=lambda: 0, _dp_allreduce=lambda tensor, **_: tensor, device_mesh=None,
        model_parts=[model], optimizer=[torch.optim.SGD(model.parameters(), lr=1.0)],
        lr_scheduler=None, loss_fn=torch.nn.CrossEntropyLoss(), max_grad_norm=1e9, timestamp=0.0,
        step_scheduler=SimpleNamespace(step=0, epoch=0), dist_env=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    ones = torch.ones(2, 3, dtype=torch.long)
    batch = {"input_ids": ones, "attention_mask": ones, "labels": torch.zeros_like(ones[:, 0])}
    recipe._run_train_optim_step([dict(batch) for _ in range(copies)])
    return float((model.weight.detach() - before).norm())


if __name__ == "__main__":
    times, release = change(4) / change(1), version("nemo-automodel")
    print(f"nemo-automodel {release}: 4 equal micro-batches move {times:.2f} times as far as one")
    print("WRONG: their mean is one of them" if times > 1.01 else "right: as far as one")
    raise SystemExit(3 if times > 1.01 else 0)
