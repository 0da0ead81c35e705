"""The detector of buffers that differ from those of a reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from harness.detectors.buffers import BufferDifference, buffer_differences, difference


class Rotary(nn.Module):
    """A buffer of angles that is not persistent, like LLaMA's cosines."""

    def __init__(self, dtype: torch.dtype, late: bool) -> None:
        super().__init__()
        positions = torch.arange(512.0).to(torch.bfloat16 if late else dtype)
        angles = torch.outer(positions.to(dtype), torch.tensor([1.0, 0.1], dtype=dtype))
        self.register_buffer("cosines", angles.cos(), persistent=False)


class Model(nn.Module):
    """Layers with one rotary embedding each."""

    def __init__(self, layers: int, dtype: torch.dtype = torch.float32, late: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Rotary(dtype, late) for _ in range(layers))
        self.register_buffer("steps", torch.tensor(0))


def mismatch(buffer: Tensor, reference: Tensor, tolerance: float = 0.0) -> BufferDifference:
    finding = difference("a", buffer, reference, tolerance)
    assert finding is not None
    return finding


def test_models_built_alike_agree_even_if_the_reference_has_fewer_layers() -> None:
    assert buffer_differences(Model(2), Model(2)) == []
    assert buffer_differences(Model(3), Model(1)) == []
    findings = buffer_differences(Model(3, late=True), Model(1))
    assert [each.name for each in findings] == [f"layers.{n}.cosines" for n in range(3)]


def test_the_figures_are_those_of_assert_close() -> None:
    reference, buffer = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.5], [7.0, 4]])
    finding = mismatch(buffer, reference)
    assert (finding.mismatched, finding.elements) == (2, 4)
    assert (finding.greatest, finding.place) == (4.0, (1, 0))
    assert finding.relative == pytest.approx(4 / 7)
    assert finding.relative_place == (1, 0)
    assert "2 of 4 elements differ, by up to 4 at (1, 0)" in str(finding)


def test_a_dtype_of_fewer_bits_is_a_difference_even_of_equal_values() -> None:
    finding = mismatch(torch.ones(3, dtype=torch.bfloat16), torch.ones(3))
    assert (finding.dtype, finding.expected_dtype) == (torch.bfloat16, torch.float32)
    assert (finding.mismatched, finding.greatest, finding.place) == (0, 0.0, ())
    assert "torch.bfloat16, where the reference has torch.float32" in str(finding)


def test_a_difference_beyond_the_tolerance_counts_in_the_wider_dtype() -> None:
    finding = mismatch(torch.tensor([257.0], dtype=torch.bfloat16), torch.tensor([257.0]))
    assert (finding.mismatched, finding.greatest) == (1, 1.0)
    buffer, reference = torch.tensor([1.0, 2.0078125]), torch.tensor([1.0, 2.0])
    assert difference("a", buffer, reference, 2**-7) is None
    assert mismatch(buffer, reference, 2**-8).mismatched == 1
    assert mismatch(torch.tensor([1 + 2**-23]), torch.tensor([1.0])).greatest == 2**-23
    assert mismatch(torch.zeros(2), torch.ones(2)).relative == math.inf


def test_a_share_of_the_reference_may_differ() -> None:
    buffer, reference = torch.tensor([101.0, 0.0]), torch.tensor([100.0, 0.0])
    assert difference("a", buffer, reference, share=0.02) is None
    assert difference("a", buffer, reference, share=0.005) is not None
    assert difference("a", torch.tensor([1.0]), torch.tensor([0.0]), share=0.5) is not None


def test_nan_equals_nan_and_nothing_else() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert difference("a", nan, nan.clone()) is None
    finding = mismatch(nan, torch.ones(2))
    assert finding.mismatched == 1
    assert math.isnan(finding.greatest)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float64])
def test_every_dtype_can_be_compared(dtype: torch.dtype) -> None:
    finding = mismatch(torch.tensor([[1, 0]], dtype=dtype), torch.tensor([[0, 0]], dtype=dtype))
    assert (finding.mismatched, finding.greatest, finding.place) == (1, 1.0, (0, 0))


def test_a_scalar_has_a_place() -> None:
    scalar = mismatch(torch.tensor(3.0), torch.tensor(1.0))
    assert (scalar.elements, scalar.mismatched, scalar.greatest, scalar.place) == (1, 1, 2.0, (0,))


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
