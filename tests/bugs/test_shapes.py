"""Shapes: what a recorded value must be so that grading believes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from harness.bugs.api.fields import Entry, Fields, Number, Size
from harness.bugs.api.shapes import (
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
    is_alike,
    many,
    matching,
    maybe,
    one_of,
    optional,
)
from harness.bugs.api.spec import Records

STEP = held({"loss": NUMBER, "drift": by_name(SIZE), "left": optional(maybe(FLAG))})

RIGHT: list[tuple[Shape, Any]] = [
    (NUMBER, -1.5),
    (NUMBER, 3),
    (WHOLE, -3),
    (COUNT, 0),
    (FLAG, False),
    (MAY_OVERFLOW, "nan"),
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
    (NUMBER, True, "is True, expected a number"),
    (NUMBER, "1", "is '1', expected a number"),
    (NUMBER, 10**400, "is too large"),
    (SIZE, -0.5, "is -0.5, expected at least 0"),
    (WHOLE, 1.0, "is 1.0, expected a whole number"),
    (COUNT, True, "is True, expected a whole number"),
    (COUNT, -1, "is -1, expected at least 0"),
    (TEXT, None, "is None, expected text"),
    (MAY_OVERFLOW, "NaN", "is 'NaN', expected a number"),
    (MAY_OVERFLOW, math.nan, "is nan"),
    (one_of("a", "b"), "c", "is 'c', expected a or b"),
    (many(NUMBER), {}, "is {}, expected a list"),
    (many(NUMBER, 2), [1], "has 1 entry, expected 2"),
    (many(COUNT), [0, -1], r"\[1\] is -1"),
    (by_name(SIZE), [], r"is \[\], expected an object"),
    (by_name(SIZE), {"w": -1}, "w is -1"),
    (exactly(1), True, "is True, expected 1"),
    (exactly("bf16"), "fp16", "is 'fp16', expected 'bf16'"),
    (LINE, "", "is '', expected one line of text"),
    (LINE, "a\nb", "expected one line of text"),
    (LINE, "\x1b[2J", "expected one line of text"),
    (LINE, 1, "is 1, expected one line of text"),
    (matching("a|b", "choice"), "ab", "is 'ab', expected choice"),
    (matching(r"\d", "digit"), "1\n", "expected digit"),
    (matching(r"\d", "digit"), "\u0663", "expected digit"),
    (many(COUNT, least=1), [], "has 0 entries, expected at least 1"),
    (by_name(COUNT, least=1), {}, "has 0 names, expected at least 1"),
    (by_name(COUNT), {"\x1b": 1}, "expected one line of text"),
    (alike(SIZE), -1.0, "is -1.0, expected at least 0"),
    (STEP, {"loss": 1.0}, "drift is missing"),
    (STEP, {"loss": 1.0, "drift": {}, "norm": 1}, "norm is not expected"),
    (STEP, {"loss": 1.0, "drift": {"w": math.nan}}, "drift w is nan"),
    (STEP, [], r"is \[\], expected an object"),
    (TEXT, list(range(1000)), r"is \[0, 1, .*\.\.\., expected text"),
]


@pytest.mark.parametrize(("shape", "value"), RIGHT)
def test_a_value_of_the_shape_is_accepted(shape: Shape, value: Any) -> None:
    assert shape(value) == ""


@pytest.mark.parametrize(("shape", "value", "message"), WRONG)
def test_another_value_is_refused_with_the_reason(shape: Shape, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        raise ValueError(shape(value))


def test_an_optional_fact_may_be_alike() -> None:
    assert is_alike(alike(SIZE))
    assert is_alike(optional(alike(SIZE)))
    assert not is_alike(SIZE)
    assert not is_alike(optional(SIZE))


@dataclass(frozen=True)
class Part(Fields):
    norm: Size
    shares: Annotated[list[float], many(NUMBER, 2)]


@dataclass(frozen=True)
class Step(Entry):
    loss: Number
    part: Part
    other: Part | None = None


def test_a_class_of_facts_has_their_shapes_and_reads_them() -> None:
    shapes = Step.shapes(loss=maybe(NUMBER))
    assert list(shapes) == ["part", "loss"], "a fact with a default is only in some trials"
    facts = {"loss": None, "part": {"norm": 1.0, "shares": [1.0, 0.0]}}
    assert held(shapes)(facts) == ""
    assert held(shapes)({**facts, "part": {"norm": -1.0, "shares": []}}) == (
        "part norm is -1.0, expected at least 0"
    )
    record = {"kind": "step", "rank": 1, "step": 2, "more": 0, **facts}
    step = Step.of({**record, "other": facts["part"]})
    assert (step.rank, step.step, step.part.shares, step.other) == (1, 2, [1.0, 0.0], step.part)
    assert Step.of(record).other is None
    assert Records({1: [record]}).typed(Step) == [Step.of(record)]
