"""Shapes of recorded facts: what a value must be, to be believed.

    STEP = {"loss": NUMBER, "differing": by_name(SIZE), "grad_norm": alike(maybe(SIZE))}

A shape is a function that says what is wrong with a value. Standard library only.
"""

from __future__ import annotations

import math
import re
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


def LINE(value: Any) -> str:
    """A text on one line, and not an empty one: a name, a host."""
    fits = isinstance(value, str) and value.strip() and value.isprintable()
    return "" if fits else f"is {_short(value)}, and no line of text"


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


def matching(form: str, what: str) -> Shape:
    """A text that is ``what``: of this form, a regular expression, from its start to its end."""
    found = re.compile(form, re.ASCII)

    def check(value: Any) -> str:
        fits = isinstance(value, str) and found.fullmatch(value)
        return "" if fits else f"is {_short(value)}, and no {what}"

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


def many(shape: Shape, count: int | None = None, *, least: int = 0) -> Shape:
    """A list of these, of so many where that is known, or of at least so many."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return f"is {_short(value)}, and no list"
        if count is not None and len(value) != count:
            return f"has {len(value)} entries, and not {count}"
        if len(value) < least:
            return f"has {len(value)} entries, and not {least} or more"
        return next((f"[{n}] {wrong}" for n, one in enumerate(value) if (wrong := shape(one))), "")

    return check


def by_name(shape: Shape, *, least: int = 0) -> Shape:
    """These, by name; at least so many."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"is {_short(value)}, and nothing by name"
        if len(value) < least:
            return f"has {len(value)} names, and not {least} or more"
        odd = next((name for name in value if LINE(name)), None)
        if odd is not None:
            return f"has the name {_short(odd)}, which is no line of text"
        return next((f"{n} {wrong}" for n, one in value.items() if (wrong := shape(one))), "")

    return check


class optional:
    """A fact that may be left out."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __call__(self, value: Any) -> str:
        return self.shape(value)


class _Alike:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __call__(self, value: Any) -> str:
        return self.shape(value)


def alike(shape: Shape) -> Shape:
    """A fact of this shape that all ranks of a launch have alike, record by record."""
    return _Alike(shape)


def told_alike(shape: Shape) -> bool:
    """Whether a fact of this shape, where it is not left out, is ``alike`` on all ranks."""
    return isinstance(shape.shape if isinstance(shape, optional) else shape, _Alike)


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
