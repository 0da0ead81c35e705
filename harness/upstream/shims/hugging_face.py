"""What Hugging Face's libraries need anywhere: not to look for models or data on a hub."""

from __future__ import annotations

import os
from collections.abc import Callable

from harness.spec import Lane, Point


def _offline(count: Callable[[], None]) -> None:
    # Before anything imports huggingface_hub, which reads it once.
    os.environ["HF_HUB_OFFLINE"] = "1"
    count()


POINTS = tuple(
    Point(
        f"{upstream}.offline", upstream, releases, (Lane.CPU, Lane.GPU),
        "models and data are made in code: nothing may ask a hub, and whatever would try fails",
        _offline,
    )
    for upstream, releases in (("transformers", ">=4"), ("accelerate", ""), ("datasets", ""))
)  # fmt: skip
