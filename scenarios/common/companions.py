"""Packages that a release needs beside it, and that its date alone does not choose."""

from __future__ import annotations

from harness.spec import Companion

OLD_ACCELERATE = Companion(
    "transformers<4.48",
    {"accelerate": "0.34.2"},
    "newer ones do not install beside the huggingface_hub of these releases",
)
