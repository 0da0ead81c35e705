"""How much of one vector is in another, whichever library has made it."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch

from harness.api.projection import projection


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
    found = projection(make(got), make(right))
    assert found.ratio == pytest.approx(ratio)
    assert found.aside == pytest.approx(aside)
    assert found.beside == pytest.approx(aside * found.got)
    assert (found.right, found.got) == pytest.approx((math.hypot(*right), math.hypot(*got)))


def test_nothing_is_a_multiple_of_nothing() -> None:
    found = projection(numpy.array([3.0, 4.0]), numpy.zeros(2))
    assert math.isnan(found.ratio)
    assert (found.right, found.beside) == (0.0, 5.0)
