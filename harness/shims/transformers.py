"""What transformers needs anywhere: not to look for models on a hub."""

from __future__ import annotations

import os
from collections.abc import Callable

from harness.spec import Lane, Point


def _offline(count: Callable[[], None]) -> None:
    # Before anything imports huggingface_hub, which reads it once.
    os.environ["HF_HUB_OFFLINE"] = "1"
    count()


POINTS = (
    Point(
        "transformers.offline", "transformers", ">=4", (Lane.CPU, Lane.GPU),
        "models are configured in code: nothing may ask a model hub, and whatever would try fails",
        _offline,
    ),
)  # fmt: skip
