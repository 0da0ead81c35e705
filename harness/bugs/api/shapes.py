"""Shapes of recorded facts: what a value must be so that grading believes it.

    STEP = {"loss": NUMBER, "differing": by_name(SIZE), "grad_norm": alike(maybe(SIZE))}

A shape is a function that returns what is wrong with a value. Standard library only.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Shape = Callable[[Any], str]
"""Returns what is wrong with a value, as text that follows its name (``is nan``); empty if nothing
is."""

Facts = Mapping[str, Shape]
"""The facts of a record by name. All must be present, except ``optional`` ones, and no others."""


def NUMBER(value: Any) -> str:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _unlike(value, "a number")
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}: the training diverged, and that is not the documented symptom"
    return "" if abs(value) <= sys.float_info.max else "is too large for a number"


def SIZE(value: Any) -> str:
    """A finite number of at least 0: a norm, a distance, a rate."""
    return NUMBER(value) or _at_least_0(value)


def WHOLE(value: Any) -> str:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return _unlike(value, "a whole number")
    return NUMBER(value)


def COUNT(value: Any) -> str:
    """A whole number of at least 0."""
    return WHOLE(value) or _at_least_0(value)


def TEXT(value: Any) -> str:
    """Text."""
    return "" if isinstance(value, str) else _unlike(value, "text")


def LINE(value: Any) -> str:
    """One line of text that is not empty: a name, a host."""
    fits = isinstance(value, str) and value.strip() and value.isprintable()
    return "" if fits else _unlike(value, "one line of text")


def FLAG(value: Any) -> str:
    """True or false."""
    return "" if isinstance(value, bool) else _unlike(value, "true or false")


def MAY_OVERFLOW(value: Any) -> str:
    """A number that may be NaN or infinite, and is then recorded as ``nan``, ``inf``, ``-inf``."""
    return "" if value in ("nan", "inf", "-inf") and isinstance(value, str) else NUMBER(value)


def one_of(*choices: str) -> Shape:
    """One of these texts."""
    return lambda value: "" if value in choices else _unlike(value, " or ".join(choices))


def matching(form: str, noun: str) -> Shape:
    """Text that matches a regular expression from start to end; ``noun`` names it in messages."""
    pattern = re.compile(form, re.ASCII)

    def check(value: Any) -> str:
        fits = isinstance(value, str) and pattern.fullmatch(value)
        return "" if fits else _unlike(value, noun)

    return check


def exactly(expected: Any) -> Shape:
    """This value: a parameter that is recorded, or the moment of an observation."""

    def check(value: Any) -> str:
        equal = value == expected and isinstance(value, bool) == isinstance(expected, bool)
        return "" if equal else _unlike(value, _short(expected))

    return check


def maybe(shape: Shape) -> Shape:
    """A value of this shape, or null."""
    return lambda value: "" if value is None else shape(value)


def many(shape: Shape, count: int | None = None, *, least: int = 0) -> Shape:
    """A list of values of this shape: exactly ``count`` if given, and at least ``least``."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return _unlike(value, "a list")
        entries = "1 entry" if len(value) == 1 else f"{len(value)} entries"
        if count is not None and len(value) != count:
            return f"has {entries}, expected {count}"
        if len(value) < least:
            return f"has {entries}, expected at least {least}"
        return next((f"[{n}] {error}" for n, one in enumerate(value) if (error := shape(one))), "")

    return check


def by_name(shape: Shape, *, least: int = 0) -> Shape:
    """An object whose values have this shape, under at least ``least`` names."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return _unlike(value, "an object")
        if len(value) < least:
            return f"has {len(value)} names, expected at least {least}"
        odd = next((name for name in value if LINE(name)), None)
        if odd is not None:
            return f"has the name {_short(odd)}, expected one line of text"
        return next((f"{n} {error}" for n, one in value.items() if (error := shape(one))), "")

    return check


@dataclass(frozen=True)
class _Marked:
    """A shape with a further property."""

    shape: Shape

    def __call__(self, value: Any) -> str:
        return self.shape(value)


class optional(_Marked):
    """A fact that may be missing."""


class _Alike(_Marked):
    pass


def alike(shape: Shape) -> Shape:
    """A fact of this shape that is the same on all ranks of a launch, record by record."""
    return _Alike(shape)


def is_alike(shape: Shape) -> bool:
    """Whether a fact of this shape, if it is recorded, must be the same on all ranks."""
    return isinstance(shape.shape if isinstance(shape, optional) else shape, _Alike)


def held(shapes: Facts) -> Shape:
    """An object with exactly these fields."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return _unlike(value, "an object")
        odd = [name for name in value if name not in shapes]
        if odd:
            return f"{odd[0]} is not expected"
        for name, shape in shapes.items():
            if name not in value:
                if not isinstance(shape, optional):
                    return f"{name} is missing"
            elif error := shape(value[name]):
                return f"{name} {error}"
        return ""

    return check


def _at_least_0(value: float) -> str:
    return "" if value >= 0 else _unlike(value, "at least 0")


def _unlike(value: Any, expected: str) -> str:
    return f"is {_short(value)}, expected {expected}"


def _short(value: Any) -> str:
    most = 40
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
