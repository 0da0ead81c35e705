"""What Hugging Face's libraries need: no look-ups on a hub, and no foreign transformers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from harness.api.spec import Lane, Point
from harness.overlays.shims import stand_ins

BOTH = (Lane.CPU, Lane.GPU)


def _offline(count: Callable[[], None]) -> None:
    # Set before anything imports huggingface_hub, which reads the variable once.
    os.environ["HF_HUB_OFFLINE"] = "1"
    count()


def _own_transformers(count: Callable[[], None], package: str) -> None:
    """Hide a transformers that does not lie beside this package."""
    if _folder_of("transformers") not in (None, _folder_of(package)):
        sys.modules["transformers"] = None  # type: ignore[assignment]
        count()


def _folder_of(package: str) -> Path | None:
    """The folder that a package would be imported from."""
    found = find_spec(package)
    return Path(found.origin).parent.parent if found and found.origin else None


OFFLINE = Point(
    "huggingface_hub.offline",
    "huggingface_hub",
    "",
    BOTH,
    "scenarios make their models and data in code: no library may look on a hub, and a library "
    "that tries fails",
    _offline,
)
"""For every run, whatever it pins: these libraries also come as dependencies of others."""

POINTS = (
    Point(
        "accelerate.own_transformers",
        "accelerate",
        "",
        BOTH,
        "it imports any transformers that it finds, and one from outside the overlay fails at the "
        "overlay's older huggingface_hub: that one is hidden",
        partial(_own_transformers, package="accelerate"),
    ),
    Point(
        "pytorch-lightning.own_transformers",
        "pytorch-lightning",
        "<2.2",
        BOTH,
        "its torchmetrics imports any transformers that it finds, and one from outside the overlay "
        "fails at the overlay's other packages: that one is hidden",
        partial(_own_transformers, package="pytorch_lightning"),
    ),
    Point(
        "transformers.whole_checkpoints",
        "transformers",
        "<4.47",
        BOTH,
        "torch 2.6 changed torch.load's default, and the Trainer of these releases resumes with "
        "it from the random states that it saved itself",
        stand_ins.whole_checkpoints,
    ),
)
