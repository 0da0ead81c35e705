"""Which line of a loop runs now."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable
from typing import Any

import torch

STRANGERS = tuple(
    os.path.join(folder, "")
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
)
"""The folders of code that calls a backward for a loop."""


def place_of_caller() -> Hashable:
    """The place in the loop's code, or in that of a package, that runs now."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(STRANGERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
