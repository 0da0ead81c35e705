"""The detector of shrinking headroom, on tensors and in a small training loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from harness.detectors.headroom import FP16_MAX, Headroom, Reading

INF, NAN = math.inf, math.nan


def read(*tensors: Tensor, headroom: Headroom | None = None) -> Reading:
    headroom = headroom or Headroom()
    for tensor in tensors:
        headroom.observe("scores", tensor)
    (reading,) = headroom.step()
    return reading


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sign", [1, -1])
def test_each_halving_of_the_limit_is_a_bit(dtype: torch.dtype, sign: int) -> None:
    tensor = torch.tensor([[0.5, sign * 4096.0], [0.0, 1.0]], dtype=dtype)
    reading = read(tensor)
    assert reading.largest == 4096
    assert reading.bits == pytest.approx(math.log2(FP16_MAX / 4096))


BITS = [
    (torch.tensor([2 * FP16_MAX]), -1),
    (torch.tensor([FP16_MAX], dtype=torch.float16), 0),
    (torch.zeros(3), INF),
]


@pytest.mark.parametrize(("tensor", "bits"), BITS)
def test_values_at_and_beyond_the_limit_and_zeros(tensor: Tensor, bits: float) -> None:
    reading = read(tensor)
    assert reading.bits == pytest.approx(bits)
    assert reading.low is (bits <= 0)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_inf_and_nan_have_no_headroom_at_all(value: float) -> None:
    reading = read(torch.tensor([1.0, value, 2.0], dtype=torch.float16))
    assert reading.bits == -INF
    assert reading.low
    assert not math.isfinite(reading.largest)
    assert read(torch.tensor([1.0]), torch.tensor([value]), torch.tensor([2.0])).bits == -INF


def test_a_product_that_overflows_in_fp16_is_seen_where_it_was_computed() -> None:
    query = torch.full((1, 128), 24.0, dtype=torch.float16)
    assert read(query @ query.t()).bits == -INF  # 73728
    assert read(query.bfloat16() @ query.bfloat16().t()).bits < 0


def test_the_largest_of_a_step_counts_and_the_next_step_begins_again() -> None:
    headroom = Headroom()
    assert read(torch.tensor([8.0]), torch.tensor([2.0]), headroom=headroom).largest == 8
    assert read(torch.tensor([2.0]), headroom=headroom).largest == 2


def test_readings_come_by_name_and_only_for_what_was_observed() -> None:
    headroom = Headroom()
    headroom.observe("b", torch.ones(1))
    headroom.observe("a", torch.ones(1))
    headroom.observe("empty", torch.ones(0))
    assert [reading.name for reading in headroom.step()] == ["b", "a"]
    assert headroom.step() == []


def test_the_trend_is_in_bits_a_step_and_estimates_the_steps_left() -> None:
    headroom = Headroom()
    readings = [read(torch.tensor([2.0**n]), headroom=headroom) for n in range(8)]
    assert readings[0].trend is None
    assert readings[0].steps_left is None
    assert readings[-1].trend == pytest.approx(-1)
    assert readings[-1].steps_left == pytest.approx(math.log2(FP16_MAX) - 7)
    assert "-1.00 bits a step: gone in about 9 steps" in str(readings[-1])


def test_the_trend_forgets_what_is_older_than_its_window() -> None:
    headroom = Headroom(window=3)
    for n in (9, 9, 5, 4):
        read(torch.tensor([2.0**n]), headroom=headroom)
    assert read(torch.tensor([2.0**3]), headroom=headroom).trend == pytest.approx(1)


def test_growing_headroom_has_no_end() -> None:
    headroom = Headroom()
    *_, reading = (read(torch.tensor([2.0**-n]), headroom=headroom) for n in range(3))
    assert reading.steps_left is None


def test_an_overflow_does_not_spoil_the_trend() -> None:
    headroom = Headroom()
    for n in range(3):
        read(torch.tensor([2.0**n]), headroom=headroom)
    over = read(torch.tensor([INF]), headroom=headroom)
    assert over.trend == pytest.approx(-1)
    assert over.steps_left is None


def test_a_step_that_was_left_out_counts_in_the_trend() -> None:
    headroom = Headroom()
    read(torch.tensor([1.0]), headroom=headroom)
    headroom.step()
    assert read(torch.tensor([4.0]), headroom=headroom).trend == pytest.approx(-1)


def test_the_alarm_is_raised_below_the_threshold_and_the_limit_can_be_set() -> None:
    assert not read(torch.tensor([FP16_MAX / 8])).low
    assert read(torch.tensor([FP16_MAX / 7])).low
    assert not read(torch.tensor([FP16_MAX / 7]), headroom=Headroom(warn_below=2)).low
    assert read(torch.tensor([224.0]), headroom=Headroom(limit=448.0)).bits == 1  # fp8 e4m3


def test_watching_changes_neither_the_tensor_nor_its_gradient() -> None:
    tensor = torch.tensor([3.0, -4.0], requires_grad=True)
    headroom = Headroom()
    headroom.observe("x", tensor * 2)
    (tensor * 2).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [2, 2]
    assert headroom.step()[0].largest == 8


@pytest.mark.parametrize(
    "knobs", [{"limit": 0.0}, {"limit": INF}, {"warn_below": NAN}, {"window": 1}]
)
def test_invalid_parameters_and_tensors_of_integers_are_refused(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"limit|window"):
        Headroom(**knobs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"scores: torch\.int64"):
        read(torch.ones(1, dtype=torch.int64))
