"""How far a tensor is from its reference, in units of what rounding does."""

from __future__ import annotations

import numpy
import pytest
import torch

from harness.rank.compare import astray, spread, ulp
from harness.rank.probe.exchange import Step
from harness.training.probe.compare.reference import Reference

ZERO, ONE = numpy.zeros(2), numpy.ones(2)


@pytest.mark.parametrize(
    ("tensor", "reference", "spread", "far"),
    [
        (ZERO, ZERO, 0.0, False),  # a rate of 0 at the first step of a warmup
        (ONE, ZERO, 0.0, True),
        (ONE, ONE, 0.1, False),
        (1.1 * ONE, ONE, 0.1, False),
        (3.0 * ONE, ONE, 0.1, True),
        (numpy.array([float("nan"), 1]), ONE, 0.1, True),
    ],
)
def test_what_is_further_than_rounding_moves_it_is_astray(
    tensor: numpy.ndarray, reference: numpy.ndarray, spread: float, far: bool
) -> None:
    assert bool(astray({"weight": tensor}, {"weight": reference}, {"weight": spread})) is far


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_perturbed_run_that_is_not_finite_does_not_say_how_far_rounding_goes(
    value: float,
) -> None:
    """All was far then, or nothing was."""
    perturbed = [{"weight": ONE * value}, {"weight": ONE * 1.25}]
    rounding = spread(perturbed, {"weight": ONE})
    assert rounding["weight"] == pytest.approx(0.25 * 2**0.5)
    assert (
        astray({"weight": 9 * ONE}, {"weight": ONE}, spread(perturbed[:1], {"weight": ONE})) == {}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_ulp_is_the_least_change_of_a_value(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, -1.0, 0.0] * 20, dtype=dtype)
    change = ulp(tensor, torch.Generator().manual_seed(0))
    assert {float(value) for value in change} == {
        0.0,
        torch.finfo(dtype).eps,
        -torch.finfo(dtype).eps,
    }
    assert torch.equal(change, ulp(tensor, torch.Generator().manual_seed(0)))


def test_the_rounding_of_a_single_value_is_that_of_its_largest_update() -> None:
    """Momentum cancels an update of 0.01, in fp16, down to 0.0004; its rounding stays."""

    def step(update: float) -> Step:
        grad, arrays = {"b": numpy.array([1.0])}, {"b": numpy.array([update])}
        sizes = {"eps": {"b": 1e-7}, "largest": {"b": 0.1}}
        return Step(grad=grad, update=arrays, coarse=2.0**-10, **sizes)

    reference = Reference([step(0.01), step(0.0004)], [])
    assert reference.spread(1, "update")["b"] == pytest.approx(2.0**-11 * 0.01)
    assert reference.spread(1, "grad")["b"] == pytest.approx(2.0**-11)
