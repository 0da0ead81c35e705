"""The detector for buffers that are not those of a reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from harness.detectors.buffers import BufferDifference, buffer_differences, difference


class Rotary(nn.Module):
    """Angles in a buffer that is not persistent, as LLaMA keeps its cosines."""

    def __init__(self, dtype: torch.dtype, late: bool) -> None:
        super().__init__()
        positions = torch.arange(512.0).to(torch.bfloat16 if late else dtype)
        angles = torch.outer(positions.to(dtype), torch.tensor([1.0, 0.1], dtype=dtype))
        self.register_buffer("cosines", angles.cos(), persistent=False)


class Model(nn.Module):
    """Some layers with a rotary embedding each."""

    def __init__(self, layers: int, dtype: torch.dtype = torch.float32, late: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Rotary(dtype, late) for _ in range(layers))
        self.register_buffer("steps", torch.tensor(0))


def found(buffer: Tensor, reference: Tensor, tolerance: float = 0.0) -> BufferDifference:
    found = difference("a", buffer, reference, tolerance)
    assert found is not None
    return found


def test_models_built_alike_agree_even_if_the_reference_has_fewer_layers() -> None:
    assert buffer_differences(Model(2), Model(2)) == []
    assert buffer_differences(Model(3), Model(1)) == []
    wrong = buffer_differences(Model(3, late=True), Model(1))
    assert [each.name for each in wrong] == [f"layers.{n}.cosines" for n in range(3)]


def test_rounded_positions_are_found_with_their_place() -> None:
    (one,) = buffer_differences(Model(1, late=True), Model(1))
    assert one.elements == 1024
    assert 200 < one.mismatched <= 256
    assert one.place[0] >= 257
    assert one.greatest > 0.5


def test_the_figures_are_those_of_assert_close() -> None:
    reference, buffer = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.5], [7.0, 4]])
    one = found(buffer, reference)
    assert (one.mismatched, one.elements) == (2, 4)
    assert (one.greatest, one.place) == (4.0, (1, 0))
    assert one.relative == pytest.approx(4 / 7)
    assert one.relative_place == (1, 0)
    assert "2 of 4 elements differ, by up to 4 at (1, 0)" in str(one)


def test_a_dtype_of_fewer_bits_is_a_difference_even_of_equal_values() -> None:
    one = found(torch.ones(3, dtype=torch.bfloat16), torch.ones(3))
    assert (one.dtype, one.expected_dtype) == (torch.bfloat16, torch.float32)
    assert (one.mismatched, one.greatest, one.place) == (0, 0.0, ())
    assert "torch.bfloat16, where the reference has torch.float32" in str(one)


def test_a_difference_beyond_the_tolerance_counts_in_the_wider_dtype() -> None:
    one = found(torch.tensor([257.0], dtype=torch.bfloat16), torch.tensor([257.0]))
    assert (one.mismatched, one.greatest) == (1, 1.0)
    buffer, reference = torch.tensor([1.0, 2.0078125]), torch.tensor([1.0, 2.0])
    assert difference("a", buffer, reference, 2**-7) is None
    assert found(buffer, reference, 2**-8).mismatched == 1
    assert found(torch.tensor([1 + 2**-23]), torch.tensor([1.0])).greatest == 2**-23
    assert found(torch.zeros(2), torch.ones(2)).relative == math.inf


def test_nan_equals_nan_and_nothing_else() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert difference("a", nan, nan.clone()) is None
    one = found(nan, torch.ones(2))
    assert one.mismatched == 1
    assert math.isnan(one.greatest)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float64])
def test_every_dtype_can_be_compared(dtype: torch.dtype) -> None:
    one = found(torch.tensor([[1, 0]], dtype=dtype), torch.tensor([[0, 0]], dtype=dtype))
    assert (one.mismatched, one.greatest, one.place) == (1, 1.0, (0, 0))


def test_a_scalar_has_a_place() -> None:
    one = found(torch.tensor(3.0), torch.tensor(1.0))
    assert (one.elements, one.mismatched, one.greatest, one.place) == (1, 1, 2.0, (0,))


def test_a_buffer_that_the_reference_lacks_or_has_in_another_shape_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"no buffer 0\.cosines"):
        buffer_differences(Model(1).layers, nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"shape \(2,\), and in the reference \(3,\)"):
        difference("a", torch.ones(2), torch.ones(3))


def test_both_models_are_left_as_they_are() -> None:
    model, reference = Model(1, late=True), Model(1)
    before = [buffer.clone() for each in (model, reference) for buffer in each.buffers()]
    buffer_differences(model, reference)
    after = [buffer for each in (model, reference) for buffer in each.buffers()]
    assert all(map(torch.equal, before, after))
