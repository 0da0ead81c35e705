"""Compute MegaBatchMarginLoss of 8 pairs in mini-batches of 2: which pairs have a gradient?

Needs torch and sentence-transformers, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MegaBatchMarginLoss


class Words(torch.nn.Module):
    """Gives each word a vector; a text is one word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(16, 4)

    def forward(self, features: Any) -> Any:
        return {**features, "sentence_embedding": self.table(features["input_ids"][:, 0])}


torch.manual_seed(0)
words = Words()
loss = MegaBatchMarginLoss(SentenceTransformer(modules=[words], device="cpu"), mini_batch_size=2)
anchors, positives = torch.arange(16).reshape(2, 8, 1)
loss([{"input_ids": anchors}, {"input_ids": positives}], torch.zeros(8)).backward()
trained = (words.table.weight.grad[:8].norm(dim=1) > 0).nonzero().flatten().tolist()  # type: ignore
print(f"sentence-transformers {sentence_transformers.__version__}: pairs with a gradient {trained}")
print("WRONG: some have none" if len(trained) < 8 else "right: all have one")
raise SystemExit(3 if len(trained) < 8 else 0)
