"""When transformers began to do what several bugs depend on, by its own history."""

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
