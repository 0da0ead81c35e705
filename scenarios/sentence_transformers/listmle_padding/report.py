"""The gradient of a list of two documents: is it the same beside a list of four?

Needs torch and sentence-transformers, and no GPU. The exit code is 3 if the bug is there."""

import sentence_transformers
import torch
from sentence_transformers.cross_encoder.losses import ListMLELoss
from transformers import BatchEncoding


class Scores(torch.nn.Module):
    """Stands in for a CrossEncoder, also for an older one: its scores are a parameter."""

    num_labels, device = 1, torch.device("cpu")
    scores: torch.Tensor

    def tokenizer(self, pairs, **_):  # type: ignore[no-untyped-def]
        return BatchEncoding({"rows": torch.arange(len(pairs))})

    preprocess = tokenizer

    def forward(self, features=None, rows=None):  # type: ignore[no-untyped-def]
        scores = self.scores[rows if features is None else features["rows"]]
        return {"scores": scores, 0: scores}


def gradient(*lengths: int) -> list[float]:
    """For the scores of the first list, of its own loss; the batch's loss is the mean of all."""
    model, lists = Scores(), [[f"document {n}" for n in range(length)] for length in lengths]
    model.scores = torch.nn.Parameter(torch.tensor([1.5, 0.3, *[0.0] * sum(lengths[1:])]))
    labels = [torch.arange(length, 0, -1) for length in lengths]
    loss = ListMLELoss(model, mini_batch_size=-1)((["query"] * len(lists), lists), labels)
    return (torch.autograd.grad(loss, model.scores)[0][:2] * len(lists)).tolist()


alone, beside = gradient(2), gradient(2, 4)
print(f"sentence-transformers {sentence_transformers.__version__}: alone {alone}, beside {beside}")
bug = max(abs(a - b) for a, b in zip(alone, beside, strict=True)) > 1e-4
print("WRONG: it depends on another list" if bug else "right: it is the same")
raise SystemExit(3 if bug else 0)
