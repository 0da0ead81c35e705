"""Packages that a release of pytorch-lightning needs, and that its date alone does not choose."""

from __future__ import annotations

from harness.bugs import api

OLD_TORCHMETRICS = api.Companion(
    "pytorch-lightning<1.8",
    {"torchmetrics": "0.11.4"},
    "1.7 imports a function that later ones lack",
)
