"""What Hugging Face's libraries need anywhere: not to look for models or data on a hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from harness.spec import Lane, Point

BOTH = (Lane.CPU, Lane.GPU)


def _offline(count: Callable[[], None]) -> None:
    # Before anything imports huggingface_hub, which reads it once.
    os.environ["HF_HUB_OFFLINE"] = "1"
    count()


def _own_transformers(count: Callable[[], None]) -> None:
    if _place("transformers") not in (None, _place("accelerate")):
        sys.modules["transformers"] = None  # type: ignore[assignment]
        count()


def _place(package: str) -> Path | None:
    """The folder that a package would be imported from."""
    found = find_spec(package)
    return Path(found.origin).parent.parent if found and found.origin else None


POINTS = (
    *(
        Point(
            f"{upstream}.offline",
            upstream,
            releases,
            BOTH,
            "models and data are made in code: nothing may ask a hub, and whatever would try fails",
            _offline,
        )
        for upstream, releases in (("transformers", ">=4"), ("accelerate", ""), ("datasets", ""))
    ),
    Point(
        "accelerate.own_transformers",
        "accelerate",
        "",
        BOTH,
        "it imports a transformers that it finds, which on a box that has another one beside torch "
        "fails at the overlay's older huggingface_hub: one from elsewhere is hidden",
        _own_transformers,
    ),
)
