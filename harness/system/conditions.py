"""A condition for a value, as in bug.toml."""

from __future__ import annotations

from typing import Any

Condition = Any
"""A value; a list of values, one of which must hold; or a table with one of ``COMPARISONS``."""

COMPARISONS = ("above", "below", "not")
"""Each has a number; ``not`` has a value or a list of values, none of which may hold."""


def holds(condition: Condition, value: Any) -> bool:
    """Whether a value meets a condition. Only a number is above or below another one."""
    if isinstance(condition, dict):
        ((word, limit),) = condition.items()
        if word == "not":
            return not holds(limit, value)
        is_number = isinstance(value, (int, float)) and not _is_flag(value)
        return is_number and bool(value > limit if word == "above" else value < limit)
    choices = condition if isinstance(condition, list) else [condition]
    return any(value == one and _is_flag(value) == _is_flag(one) for one in choices)


def in_words(condition: Condition) -> str:
    """A condition as text, such as "bf16 or fp16"."""
    if isinstance(condition, dict):
        ((word, limit),) = condition.items()
        return f"{word} {in_words(limit)}"
    return " or ".join(map(word_of, condition if isinstance(condition, list) else [condition]))


def word_of(value: Any) -> str:
    """A value as text: a flag is on or off."""
    if _is_flag(value):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)  # 1 is equal to True, and means another thing
