"""Shapes: what a recorded value must be, to be believed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.facts.shapes import (
    COUNT,
    FLAG,
    LINE,
    MAY_OVERFLOW,
    NUMBER,
    SIZE,
    TEXT,
    WHOLE,
    Shape,
    alike,
    by_name,
    exactly,
    held,
    many,
    matching,
    maybe,
    one_of,
    optional,
    told_alike,
)

STEP = held({"loss": NUMBER, "drift": by_name(SIZE), "left": optional(maybe(FLAG))})

RIGHT: list[tuple[Shape, Any]] = [
    (NUMBER, -1.5),
    (NUMBER, 3),
    (SIZE, 0),
    (WHOLE, -3),
    (COUNT, 0),
    (TEXT, ""),
    (FLAG, False),
    (MAY_OVERFLOW, "nan"),
    (MAY_OVERFLOW, "-inf"),
    (MAY_OVERFLOW, 2.0),
    (one_of("a", "b"), "b"),
    (maybe(COUNT), None),
    (exactly(0.1), 0.1),
    (many(NUMBER), []),
    (many(NUMBER, 2), [1, 2.5]),
    (by_name(FLAG), {}),
    (LINE, "3.norm.weight (fp32)"),
    (matching(r"\d+", "number"), "12"),
    (many(COUNT, least=1), [0]),
    (by_name(COUNT, least=1), {"w": 0}),
    (alike(SIZE), 1.0),
    (STEP, {"loss": 1.0, "drift": {"w": 0.5}}),
    (STEP, {"loss": 1.0, "drift": {}, "left": None}),
]

WRONG: list[tuple[Shape, Any, str]] = [
    (NUMBER, math.nan, "is nan: the training diverged"),
    (NUMBER, -math.inf, "is -inf: the training diverged"),
    (NUMBER, True, "is True, and no number"),
    (NUMBER, "1", "is '1', and no number"),
    (NUMBER, 10**400, "is too large"),
    (SIZE, -0.5, "is -0.5, and below 0"),
    (WHOLE, 1.0, "is 1.0, and no whole number"),
    (COUNT, True, "is True, and no whole number"),
    (COUNT, -1, "is -1, and below 0"),
    (TEXT, None, "is None, and no text"),
    (FLAG, 0, "is 0, and neither true nor false"),
    (MAY_OVERFLOW, "NaN", "is 'NaN', and no number"),
    (MAY_OVERFLOW, math.nan, "is nan"),
    (one_of("a", "b"), "c", "is 'c', and not a or b"),
    (many(NUMBER), {}, "is {}, and no list"),
    (many(NUMBER, 2), [1], "has 1 entries, and not 2"),
    (many(COUNT), [0, -1], r"\[1\] is -1"),
    (by_name(SIZE), [], r"is \[\], and nothing by name"),
    (by_name(SIZE), {"w": -1}, "w is -1"),
    (exactly(1), True, "is True, and not 1"),
    (exactly("bf16"), "fp16", "is 'fp16', and not 'bf16'"),
    (LINE, "", "is '', and no line of text"),
    (LINE, " ", "is ' ', and no line of text"),
    (LINE, "a\nb", "and no line of text"),
    (LINE, "\x1b[2J", "and no line of text"),
    (LINE, 1, "is 1, and no line of text"),
    (matching("a|b", "choice"), "ab", "is 'ab', and no choice"),
    (matching(r"\d", "digit"), "1\n", "and no digit"),
    (matching(r"\d", "digit"), "\u0663", "and no digit"),
    (matching(r"\d", "digit"), 1, "is 1, and no digit"),
    (many(COUNT, least=1), [], "has 0 entries, and not 1 or more"),
    (by_name(COUNT, least=1), {}, "has 0 names, and not 1 or more"),
    (by_name(COUNT), {"\x1b": 1}, "which is no line of text"),
    (alike(SIZE), -1.0, "is -1.0, and below 0"),
    (STEP, {"loss": 1.0}, "drift is missing"),
    (STEP, {"loss": 1.0, "drift": {}, "norm": 1}, "norm was not promised"),
    (STEP, {"loss": 1.0, "drift": {"w": math.nan}}, "drift w is nan"),
    (STEP, [], r"is \[\], and nothing by name"),
    (TEXT, list(range(1000)), r"is \[0, 1, .*\.\.\., and no text"),
]


@pytest.mark.parametrize(("shape", "value"), RIGHT)
def test_a_value_of_the_shape_is_believed(shape: Shape, value: Any) -> None:
    assert shape(value) == ""


@pytest.mark.parametrize(("shape", "value", "said"), WRONG)
def test_any_other_is_not_and_the_reason_is_said(shape: Shape, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        raise ValueError(shape(value))


def test_a_fact_that_may_be_left_out_may_be_alike_on_all_ranks() -> None:
    assert told_alike(alike(SIZE))
    assert told_alike(optional(alike(SIZE)))
    assert not told_alike(SIZE)
    assert not told_alike(optional(SIZE))
