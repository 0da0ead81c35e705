"""The gradient of a list of two documents: is it the same beside a list of four?

Needs torch and sentence-transformers, and no GPU. The exit code is 3 if the bug is there."""

import sentence_transformers
import torch
from sentence_transformers.cross_encoder.losses import ListMLELoss


class Scores(torch.nn.Module):
    """Stands in for a CrossEncoder: its scores are a parameter, in the order of the documents."""

    num_labels, device = 1, torch.device("cpu")

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(torch.tensor(scores))

    def preprocess(self, pairs: list[tuple[str, str]], **_: object) -> dict[str, torch.Tensor]:
        return {"rows": torch.arange(len(pairs))}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"scores": self.scores[features["rows"]]}


def gradient(*lengths: int) -> list[float]:
    """For the scores of the first list, of its own loss; the batch's loss is the mean of all."""
    model = Scores(1.5, 0.3, *[0.0] * sum(lengths[1:]))
    lists = [[f"document {n}" for n in range(length)] for length in lengths]
    labels = [torch.arange(length, 0, -1) for length in lengths]
    loss = ListMLELoss(model, mini_batch_size=-1)((["query"] * len(lists), lists), labels)
    return (torch.autograd.grad(loss, model.scores)[0][:2] * len(lists)).tolist()


alone, beside = gradient(2), gradient(2, 4)
print(f"sentence-transformers {sentence_transformers.__version__}: alone {alone}, beside {beside}")
bug = max(abs(a - b) for a, b in zip(alone, beside, strict=True)) > 1e-4
print("WRONG: it depends on another list" if bug else "right: it is the same")
raise SystemExit(3 if bug else 0)
