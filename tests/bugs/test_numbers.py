"""How numbers are compared, and how much of one vector is in another."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest
import torch

from harness.bugs.api.numbers import finite, named, near, projection


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None, "1", True, [1.0]])
def test_nan_infinity_and_other_types_are_near_nothing(odd: Any) -> None:
    assert not finite(odd)
    assert not near(odd, 1.0, within=1e9)
    assert not near(1.0, odd, within=1e9, share=1e9)
    assert not near(odd, odd, within=math.inf)


@pytest.mark.parametrize(
    ("value", "other", "tolerance", "expected"),
    [
        (1.0, 1.0, {}, True),
        (1.0, 1.1, {}, False),
        (1.0, 1.1, {"within": 0.2}, True),
        (99.0, 100.0, {"share": 0.01}, True),
        (98.0, 100.0, {"share": 0.01}, False),
        (-99.0, -100.0, {"share": 0.01}, True),
        (0.5, 0.0, {"share": 1e9}, False),
        (0.5, 0.0, {"share": 0.01, "within": 0.5}, True),
    ],
)
def test_finite_numbers_are_near_within_a_distance_or_a_share(
    value: float, other: float, tolerance: dict[str, float], expected: bool
) -> None:
    assert near(value, other, **tolerance) is expected


@pytest.mark.parametrize("value", [1.5, math.inf, -math.inf])
def test_a_number_is_read_back_from_its_name(value: float) -> None:
    assert float(json.loads(json.dumps(named(value), allow_nan=False))) == value


def test_nan_is_read_back_from_its_name() -> None:
    assert math.isnan(float(named(math.nan)))


@pytest.mark.parametrize("make", [numpy.array, lambda of: torch.tensor(of, dtype=torch.float64)])
@pytest.mark.parametrize(
    ("got", "right", "ratio", "aside"),
    [
        ([6.0, 8.0], [3.0, 4.0], 2.0, 0.0),
        ([-3.0, -4.0], [3.0, 4.0], -1.0, 0.0),
        ([3.0, 4.0], [5.0, 0.0], 0.6, 0.8),
        ([0.0, 0.0], [3.0, 4.0], 0.0, 0.0),
    ],
)
def test_a_vector_is_a_multiple_of_the_right_one_and_a_rest(
    make: Any, got: list[float], right: list[float], ratio: float, aside: float
) -> None:
    parts = projection(make(got), make(right))
    assert parts.ratio == pytest.approx(ratio)
    assert parts.aside == pytest.approx(aside)
    assert parts.beside == pytest.approx(aside * parts.got)
    assert (parts.right, parts.got) == pytest.approx((math.hypot(*right), math.hypot(*got)))


def test_nothing_is_a_multiple_of_nothing() -> None:
    parts = projection(numpy.array([3.0, 4.0]), numpy.zeros(2))
    assert math.isnan(parts.ratio)
    assert (parts.right, parts.beside) == (0.0, 5.0)
