"""Packages that a release of trl needs, and that its date alone does not choose."""

from __future__ import annotations

from harness.bugs import api

TRANSFORMERS_4 = api.Companion(
    "trl>=0.27,<1.0",
    {"transformers": "4.57.6"},
    "by their dates they would get transformers 5.0, which lacks what the first two need, or 5.2, "
    "whose Trainer divides the gradient once more by the micro-batches",
)
