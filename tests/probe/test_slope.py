"""A note says that a loss is not as steep as its gradient, but only if smaller steps agree."""

from __future__ import annotations

import pytest

from harness.training.probe.slopes import Steep, note_on_slope


@pytest.mark.parametrize(
    ("slopes", "text"),
    [
        ((0.5, 0.5, 0.501), "falls 0.501 times as fast"),
        ((2.0, 2.0), "falls 2 times as fast"),
        ((0.688, 1.006, 1.0), ""),  # the step was too large: autograd is right
        ((0.759, 1.028, 1.006), ""),
        ((0.5, 0.7, 0.9), ""),
        ((0.0, 0.0, 1e-9), ""),  # the loss of a surrogate, as GRPO's, does not move at all
        ((0.5,), ""),
        ((), ""),
    ],
)
def test_slopes_with_smaller_steps_must_agree(slopes: tuple[float, ...], text: str) -> None:
    note = note_on_slope([Steep(slope, 1e-4) for slope in slopes])
    assert text in note
    assert bool(note) == bool(text)


def test_what_rounding_decides_does_not_count() -> None:
    assert note_on_slope([Steep(0.5, 1e-4), Steep(0.5, 1e-3), Steep(7.0, 2.0), None])
    assert not note_on_slope([Steep(0.5, 1e-4), Steep(0.5, 2.0)])
