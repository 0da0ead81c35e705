"""Packages that a release needs beside it, and that its date alone does not choose."""

from __future__ import annotations

from harness.bugs import api

OLD_ACCELERATE = api.Companion(
    "transformers<4.48",
    {"accelerate": "0.34.2"},
    "newer ones do not install beside the huggingface_hub of these releases",
)

TRANSFORMERS_4 = api.Companion(
    "trl>=0.27,<1.0",
    {"transformers": "4.57.6"},
    "by their dates they would get transformers 5.0, which lacks what the first two need, or 5.2, "
    "whose Trainer divides the gradient once more by the micro-batches",
)

OLD_TORCHMETRICS = api.Companion(
    "pytorch-lightning<1.8",
    {"torchmetrics": "0.11.4"},
    "1.7 imports a function that later ones lack",
)
