"""What is odd in the reference's own steps: no comparison of layouts would show it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from harness.probe.own_steps import notes

GRADIENT = {"weight": numpy.array([3.0, 4.0])}


def steps(*rates: float, applied: float = 1.0, clipping: float = 0.0, **group: Any) -> list[Any]:
    """Steps with these rates, the first of which moved the weights by ``applied`` gradients."""
    update = {"weight": -rates[0] * applied * GRADIENT["weight"]}
    first = {"optimizer": "SGD", "grad": GRADIENT, "update": update, "clipping": clipping}
    first |= {"group": {"lr": rates[0], "weight_decay": 0, "dampening": 0} | group}
    return [{**first, "lr": [rate]} for rate in rates]


@pytest.mark.parametrize(
    "rates", [(0.1, 0.0, 0.025, 0.05), (1e-3, 1e-5, 1.3e-4), (0.1, 0.01, 0.02)]
)
def test_a_warmup_that_begins_with_the_second_step_is_noted(rates: tuple[float, ...]) -> None:
    (note,) = notes(steps(*rates))
    assert "the learning rate falls" in note


@pytest.mark.parametrize(
    "rates", [(0.1, 0.1, 0.1), (0.0, 0.1, 0.2), (0.1, 0.05, 0.025), (0.1, 0.09, 0.1), (0.1, 0.0)]
)
def test_a_schedule_that_goes_one_way_is_not_noted(rates: tuple[float, ...]) -> None:
    assert not list(notes(steps(*rates)))


@pytest.mark.parametrize(("applied", "clipping"), [(1.0, 0.5), (2.0, 10.0), (0.2, 0.5)])
def test_a_step_that_is_not_the_clipped_gradient_is_noted(applied: float, clipping: float) -> None:
    (note,) = notes(steps(0.1, 0.1, applied=applied, clipping=clipping))
    assert f"applied {applied:.4g} times the gradient of norm 5" in note


@pytest.mark.parametrize(
    ("applied", "clipping", "group"),
    [
        (0.1, 0.5, {}),  # the norm is 5
        (1.0, 10.0, {}),
        (7.0, 0.0, {}),  # no clipping: nothing to compare with
        (7.0, 0.5, {"weight_decay": 0.1}),
        (7.0, 0.5, {"nesterov": True}),
    ],
)
def test_a_step_that_is_right_or_cannot_be_told_is_not_noted(
    applied: float, clipping: float, group: dict[str, Any]
) -> None:
    assert not list(notes(steps(0.1, 0.1, applied=applied, clipping=clipping, **group)))
