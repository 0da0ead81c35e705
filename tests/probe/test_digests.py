"""Gradients of modules are aligned by row, and divided by the factor of their micro-batch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from harness.rank.probe.recording.places import digest
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run
from harness.training.probe.where.digests import Key, MicroBatch, Recorded, distance, factors_of

KEY = Key("head", 0, "out 0", True)


def call(values: Any, name: str = "head") -> dict[str, Any]:
    digest = {"values": values, "rows": "0", "shape": [3], "eps": 1e-7}
    call = {"name": name, "often": 0, "parent": None, "micro_batch": 0, "entered": 0, "left": 1}
    return call | {"digests": {}, "gradients": {"out 0": digest}, "times": {"out 0": 2}}


def recorded(*ranks: tuple[list[str], dict[str, Any]], same_rows: bool = False) -> Recorded:
    steps = [[{"rows": [rows], "places": [call]}] for rows, call in ranks]
    return Recorded(Run(Layout("layout"), steps), same_rows)


WHOLE = numpy.arange(1.0, 13.0).reshape(4, 3)


def test_rows_of_two_ranks_are_those_of_one_with_a_factor() -> None:
    reference = recorded((["a", "b", "c", "d"], call(WHOLE)))
    divided = recorded((["d", "a"], call(2 * WHOLE[[3, 0]])), (["b", "c"], call(2 * WHOLE[1:3])))
    factors = factors_of(KEY, divided, reference)
    assert list(factors.values()) == pytest.approx([2.0, 2.0])
    assert distance(KEY, divided, reference, factors) == pytest.approx(0.0)
    assert distance(KEY, divided, reference) == pytest.approx(1.0)


def test_the_stages_of_a_pipeline_share_the_factor_of_a_micro_batch() -> None:
    reference = recorded((["a", "b"], call(WHOLE[:2])))
    stages = (["a", "b"], call(WHOLE[:2], "first")), (["x", "y"], call(3 * WHOLE[:2]))
    factors = factors_of(KEY, recorded(*stages, same_rows=True), reference)
    assert factors == pytest.approx({MicroBatch(0, 0): 3.0, MicroBatch(1, 0): 3.0})


def test_a_mask_with_infinities_is_as_itself_and_unlike_another() -> None:
    """A causal mask of CLIP is minus infinity where no token may look."""
    mask = torch.full((5, 5), float("-inf")).triu(1)
    values = digest(mask, 2)["values"].numpy()
    assert numpy.isfinite(values).all()
    assert not numpy.allclose(values, digest(mask.tril(1).triu(2), 2)["values"].numpy())
    assert not numpy.isfinite(digest(mask * float("nan"), 2)["values"].numpy()).any()
