"""Replaces functions of packages in every module that has imported them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def replace_everywhere(function: Any, wrap: Callable[[Any], Any]) -> None:
    """Put ``wrap(function)`` in the place of a function, under its own name."""
    wrapped, name = wrap(function), function.__name__
    for module in list(sys.modules.values()):
        space: dict[str, Any] = getattr(module, "__dict__", {})
        if space.get(name) is function:
            space[name] = wrapped
