"""What several bugs of transformers say of its older releases."""

from __future__ import annotations

from harness.bugs import api

BEFORE_COUNTING = api.Absent(
    "transformers<4.46",
    "only since 4.46.0 the Trainer counts the labels of a step, and lets the model divide by them",
    "https://github.com/huggingface/transformers/pull/34191",
)
BEFORE_PACKING = api.Absent(
    "transformers<4.44",
    "DataCollatorWithFlattening came with 4.44.0",
    "https://github.com/huggingface/transformers/pull/31629",
)
OLD_ACCELERATE = api.Companion(
    "transformers<4.48",
    {"accelerate": "0.34.2"},
    "newer ones do not install beside the huggingface_hub of these releases",
)
