"""What prodigyopt needs on a machine without a GPU."""

from __future__ import annotations

from functools import partial

from harness.api.spec import Lane, Point
from harness.overlays.shims import stand_ins

POINTS = (
    Point(
        "prodigyopt.tensor_cuda",
        "prodigyopt",
        "",
        (Lane.CPU,),
        "it moves the two numbers that the ranks add to a GPU: they stay where they are",
        partial(stand_ins.tensor_cuda, "prodigyopt"),
    ),
)
