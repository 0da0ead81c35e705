"""What packages that import torchvision need on a machine without CUDA.

Torch and torchvision are imported inside the function: listing the shims must not need them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from harness.api.spec import Lane, Point

BOTH = (Lane.CPU, Lane.GPU)

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
"""The signature of the operators whose declarations torchvision needs while it is imported."""


def _operators(count: Callable[[], None]) -> None:
    """Declare the operators, without code for them, if torchvision cannot load its own library."""
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", NMS)
        importlib.import_module("torchvision")
        count()


POINTS = tuple(
    Point(
        f"{package}.torchvision_operators",
        package,
        "",
        BOTH,
        "it imports torchvision, whose published wheel is for one release of torch and for CUDA: "
        "beside another torch its operators cannot be loaded, and nothing here calls them",
        _operators,
    )
    for package in ("lightly", "open-clip-torch")
)
