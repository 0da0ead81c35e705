"""What keras needs to compute with torch. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable

from harness.api.spec import Lane, Point


def _torch(count: Callable[[], None]) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    # No settings of the user are read, and none are written into the home.
    os.environ["KERAS_HOME"] = os.devnull
    count()


POINTS = (
    Point(
        name="keras.on_torch",
        upstream="keras",
        releases=">=3",
        lanes=(Lane.CPU, Lane.GPU),
        why="keras chooses its backend when it is imported, and takes TensorFlow by default",
        install=_torch,
    ),
)
