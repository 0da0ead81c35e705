"""Where a rank has a part of a parameter, its gradient says nothing about the place of a fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy

from harness.training.probe.where.modules import Evidence, first_place


def recorded(*gradients: dict[str, Any]) -> Any:
    """A step of ranks with one micro-batch each; its modules were not watched."""
    run = SimpleNamespace(ranks=[[{"parts": [one]}] for one in gradients])
    return SimpleNamespace(run=run, calls={}, in_order=lambda gradient: [])


def test_parts_of_a_parameter_are_left_out() -> None:
    whole = recorded({"weight": numpy.ones((4, 2)), "bias": numpy.ones(4)})
    part = {"weight": numpy.ones((2, 2)), "bias": numpy.ones(4)}
    evidence = Evidence("2 ranks", recorded(part, part), whole, whole, 1.0)
    vars(evidence)["factors"] = {(0, 0): 1.0, (1, 0): 1.0}
    assert first_place(evidence) is None
