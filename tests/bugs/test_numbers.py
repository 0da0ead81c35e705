"""How numbers are compared, how much of one vector is in another, and what a right step is."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest
import torch

from harness.bugs.api.numbers import finite, named, near
from harness.detectors.arithmetic import begins_with_jump, count_moved, projection, step_by_formula


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None, "1", True, [1.0]])
def test_nan_infinity_and_other_types_are_near_nothing(odd: Any) -> None:
    assert not finite(odd)
    assert not near(odd, 1.0, within=1e9)
    assert not near(1.0, odd, within=1e9, share=1e9)
    assert not near(odd, odd, within=math.inf)


@pytest.mark.parametrize(
    ("value", "second", "tolerance", "expected"),
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
    value: float, second: float, tolerance: dict[str, float], expected: bool
) -> None:
    assert near(value, second, **tolerance) is expected


@pytest.mark.parametrize("value", [1.5, math.inf, -math.inf, math.nan])
def test_a_number_is_read_back_from_its_name(value: float) -> None:
    number = float(json.loads(json.dumps(named(value), allow_nan=False)))
    assert number == pytest.approx(value, abs=0, rel=0, nan_ok=True)


@pytest.mark.parametrize("make", [numpy.array, lambda of: torch.tensor(of, dtype=torch.float64)])
@pytest.mark.parametrize(
    ("vector", "expected_vector", "ratio", "aside"),
    [
        ([6.0, 8.0], [3.0, 4.0], 2.0, 0.0),
        ([-3.0, -4.0], [3.0, 4.0], -1.0, 0.0),
        ([3.0, 4.0], [5.0, 0.0], 0.6, 0.8),
        ([0.0, 0.0], [3.0, 4.0], 0.0, 0.0),
    ],
)
def test_a_vector_is_a_multiple_of_the_right_one_and_a_rest(
    make: Any, vector: list[float], expected_vector: list[float], ratio: float, aside: float
) -> None:
    parts = projection(make(vector), make(expected_vector))
    assert parts.ratio == pytest.approx(ratio)
    assert parts.aside == pytest.approx(aside)
    assert parts.is_factor is (aside < 0.02)
    assert abs(parts.cosine) == pytest.approx(math.sqrt(1 - aside**2) if parts.got else 0)
    assert parts.beside == pytest.approx(aside * parts.got)
    assert (parts.right, parts.got) == pytest.approx(
        (math.hypot(*expected_vector), math.hypot(*vector))
    )


def test_nothing_is_a_multiple_of_nothing() -> None:
    parts = projection(numpy.array([3.0, 4.0]), numpy.zeros(2))
    assert math.isnan(parts.ratio)
    assert (parts.right, parts.beside) == (0.0, 5.0)


OPTIMIZERS = [
    (torch.optim.SGD, {"weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.9)}),
    (torch.optim.AdamW, {"weight_decay": 0.1, "eps": 1e-3}),
]


@pytest.mark.parametrize("array", [torch.Tensor.clone, lambda tensor: tensor.clone().numpy()])
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_three_steps_of_torch_are_those_of_the_formula(
    array: Any, kind: Any, settings: dict[str, Any]
) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = kind([weight], lr=0.1, **settings)
    for number in range(3):
        weight.grad = torch.tensor([0.5, -0.25, 4.0], dtype=torch.float64) * (number - 3)
        before, gradient = array(weight.detach()), array(weight.grad)
        state = {
            key: float(value) if key == "step" else array(value)
            for key, value in optimizer.state[weight].items()
            if value is not None
        }
        group = optimizer.param_groups[0]
        expected = step_by_formula(kind.__name__, group, before, gradient, state)
        optimizer.step()
        step = weight.detach().numpy() - numpy.asarray(before)
        assert numpy.asarray(expected) == pytest.approx(step)


def test_another_optimizer_has_no_formula() -> None:
    tensor = torch.ones(1)
    assert step_by_formula("RMSprop", {"lr": 0.1}, tensor, tensor, {}) is None


@pytest.mark.parametrize(
    ("rates", "times", "jumps"),
    [
        ((0.1, 0.0, 0.01), 1.5, True),
        ((0.1, 0.09, 0.1), 1.5, False),
        ((0.1, 0.09, 0.1), 1.0, True),
        ((0.1, 0.05, 0.025), 1.0, False),
        ((0.1, 0.05, 0.05 * (1 + 1e-9)), 1.0, False),
        ((0.1, 0.05), 1.0, False),
    ],
)
def test_a_schedule_begins_with_a_jump_if_its_rate_falls_and_rises(
    rates: tuple[float, ...], times: float, jumps: bool
) -> None:
    assert begins_with_jump(rates, times) is jumps


@pytest.mark.parametrize("make", [numpy.array, torch.tensor])
def test_values_without_a_gradient_need_not_move(make: Any) -> None:
    moves, has = make([True, False, True, False]), make([True, True, False, False])
    assert count_moved([(moves, has), (moves, moves)]) == (3, 4)
