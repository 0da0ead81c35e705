"""A condition of a known bug for a value, as in its bug.toml: ``{"above": 1}``, a value, or a list
of values."""

from __future__ import annotations

from typing import Any

MISSING = object()
"""The value of what is not there."""


def fits(value: Any, condition: Any) -> bool:
    """Whether a value meets a condition."""
    if isinstance(condition, dict) and "above" in condition:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and bool(value > condition["above"])
    choices = condition if isinstance(condition, list) else [condition]
    return any(value == one and _is_flag(value) == _is_flag(one) for one in choices)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)  # 1 is equal to True, and means another thing
