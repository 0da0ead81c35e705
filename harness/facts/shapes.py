"""Shapes of recorded facts: what a value must be, to be believed.

    STEP = {"loss": NUMBER, "differing": by_name(SIZE), "left_parted": maybe(FLAG)}

A shape is a function that says what is wrong with a value. Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], str]
"""Says what is wrong with a value, to be read after its name: ``is nan``. Empty if nothing is."""

Facts = Mapping[str, Shape]
"""The facts of a record by name. All must be there and nothing else, but for ``optional`` ones."""


def NUMBER(value: Any) -> str:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"is {_short(value)}, and no number"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}: the training diverged, and that is not the documented symptom"
    return "" if abs(value) <= sys.float_info.max else "is too large for a number"


def SIZE(value: Any) -> str:
    """A finite number, not below 0: a norm, a distance, a rate."""
    return NUMBER(value) or ("" if value >= 0 else f"is {value}, and below 0")


def WHOLE(value: Any) -> str:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"is {_short(value)}, and no whole number"
    return NUMBER(value)


def COUNT(value: Any) -> str:
    """A whole number, not below 0."""
    return WHOLE(value) or ("" if value >= 0 else f"is {value}, and below 0")


def TEXT(value: Any) -> str:
    """A text."""
    return "" if isinstance(value, str) else f"is {_short(value)}, and no text"


def FLAG(value: Any) -> str:
    """True or false."""
    return "" if isinstance(value, bool) else f"is {_short(value)}, and neither true nor false"


def MAY_OVERFLOW(value: Any) -> str:
    """A number that may be NaN or infinite, and is then written by its name: ``nan``, ``-inf``."""
    return "" if value in ("nan", "inf", "-inf") and isinstance(value, str) else NUMBER(value)


def ANYTHING(_: Any) -> str:
    """Whatever JSON can hold: what somebody else looks at."""
    return ""


def one_of(*choices: str) -> Shape:
    """One of these texts."""

    def check(value: Any) -> str:
        return "" if value in choices else f"is {_short(value)}, and not {' or '.join(choices)}"

    return check


def exactly(expected: Any) -> Shape:
    """This and nothing else: a knob that is recorded, or the moment that something was seen at."""

    def check(value: Any) -> str:
        same = value == expected and isinstance(value, bool) == isinstance(expected, bool)
        return "" if same else f"is {_short(value)}, and not {_short(expected)}"

    return check


def maybe(shape: Shape) -> Shape:
    """This, or null."""
    return lambda value: "" if value is None else shape(value)


def many(shape: Shape, count: int | None = None) -> Shape:
    """A list of these, of so many where that is known."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return f"is {_short(value)}, and no list"
        if count is not None and len(value) != count:
            return f"has {len(value)} entries, and not {count}"
        return next((f"[{n}] {wrong}" for n, one in enumerate(value) if (wrong := shape(one))), "")

    return check


def by_name(shape: Shape) -> Shape:
    """These, by name."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"is {_short(value)}, and nothing by name"
        return next((f"{n} {wrong}" for n, one in value.items() if (wrong := shape(one))), "")

    return check


class optional:
    """A fact that may be left out."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __call__(self, value: Any) -> str:
        return self.shape(value)


def held(shapes: Facts) -> Shape:
    """All of these, and nothing else."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"is {_short(value)}, and nothing by name"
        odd = [name for name in value if name not in shapes]
        if odd:
            return f"{odd[0]} was not promised"
        for name, shape in shapes.items():
            if name not in value:
                if not isinstance(shape, optional):
                    return f"{name} is missing"
            elif wrong := shape(value[name]):
                return f"{name} {wrong}"
        return ""

    return check


def _short(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
