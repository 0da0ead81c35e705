"""A condition of a known bug for a value, as JSON: ``{"above": 1}`` or ``{"in": ["bf16"]}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MISSING = object()
"""The value of what is not there."""


def fits(value: Any, rule: Mapping[str, Any]) -> bool:
    """Whether a value meets a condition."""
    if "above" in rule:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and bool(value > rule["above"])
    return any(value == one and _is_flag(value) == _is_flag(one) for one in rule["in"])


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)  # 1 is equal to True, and means another thing
