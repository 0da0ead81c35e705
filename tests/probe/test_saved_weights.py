"""Weights that are saved are compared with those that the reference saves."""

from __future__ import annotations

import pytest

from harness.training.probe.compare.whole_run import checkpoints
from harness.training.probe.layouts import RANKS, Layout
from harness.training.probe.runner import Run


def run_that_saves(distance: float, path: str) -> Run:
    return Run(Layout("2 ranks", RANKS, 2, 1), [], saves=[(2, path, "model", distance)])


@pytest.mark.parametrize(
    ("distances", "path", "is_broken"),
    [
        ((1.0, 0.0), "last.pt", True),
        ((0.6, 0.0), "last.pt", True),
        ((0.0, 1.0), "last.pt", True),
        ((0.0, 0.02), "last.pt", False),
        ((0.6, 0.8), "last.pt", False),  # both are averages, of other lengths
        ((250.0, 180.0), "last.pt", False),  # masks of a pruning, or momentum
        ((1.0, 0.0), "ema.pt", False),
        ((1.0, 0.0), "best/model.pt", False),
    ],
)
def test_weights_are_broken_if_one_alone_saves_the_trained_or_the_first_ones(
    distances: tuple[float, float], path: str, is_broken: bool
) -> None:
    assert len(list(checkpoints(*(run_that_saves(one, path) for one in distances)))) == is_broken
