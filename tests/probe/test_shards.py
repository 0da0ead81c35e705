"""Ranks that have parts of a model: what is their step, and how much is said of a place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from harness.rank.probe.recording.draws import Draws
from harness.training.probe.compare.reference import without_cleared
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run
from harness.training.probe.where.locate import _by_factor
from harness.training.probe.where.modules import Evidence, first_place
from harness.training.probe.where.place import Stage


def recorded(*gradients: dict[str, Any]) -> Any:
    """A step of ranks with one micro-batch each; its modules were not watched."""
    run = SimpleNamespace(ranks=[[{"parts": [one]}] for one in gradients])
    return SimpleNamespace(run=run, calls={}, in_order=lambda gradient: [])


def test_parts_of_a_parameter_are_left_out() -> None:
    whole = recorded({"weight": numpy.ones((4, 2)), "bias": numpy.ones(4)})
    part = {"weight": numpy.ones((2, 2)), "bias": numpy.ones(4)}
    evidence = Evidence(recorded(part, part), whole, whole, 1.0)
    vars(evidence)["factors"] = {(0, 0): 1.0, (1, 0): 1.0}
    assert first_place(evidence) is None


ROUTER = {"unlike": ["TopKRouter may balance experts"]}


@pytest.mark.parametrize(
    ("first", "same_rows", "expected"),
    [({}, False, Stage.REDUCTION), (ROUTER, False, None), ({}, True, None)],
)
def test_a_right_loss_leaves_the_reduction_only_if_nothing_else_is_possible(
    first: dict[str, Any], same_rows: bool, expected: Stage | None
) -> None:
    one = recorded({})
    evidence = Evidence(one, one, one, 1.0)
    factor = 1.0 if same_rows else 2.0  # the mean over two ranks
    vars(evidence).update(factors={(0, 0): factor, (1, 0): factor}, first_gradient=None)
    moment: Any = SimpleNamespace(
        layout=SimpleNamespace(name="2 ranks", rank_factor=2, world=2, k=1),
        reference=SimpleNamespace(steps=[first]),
        same_rows=same_rows,
        expected={"grad": {}},
        gradient_quantity="grad",
        ranks=[{"parts": [{}]}] * 2,
    )
    fault_place = _by_factor(evidence, moment, by_rank=False)
    assert fault_place is not None
    assert fault_place.stage == expected


def test_a_step_that_would_lose_all_its_rows_has_no_rehearsal() -> None:
    """A pipeline's first stage has all forwards before the backward whose gradients DeepSpeed adds
    up in fp32, and clears."""
    step = {"rows": [["a"], ["b"]], "unused": set(), "cleared": {"rows": 2, "losses": 0}}
    run = Run(Layout("1 rank"), [[{**step, "losses": []}]], seen=[[["a", "b"]]])
    assert without_cleared(run) == run


def test_a_model_that_seeds_its_generators_draws_nothing() -> None:
    """DeepSpeed's pipelines do that before each layer."""
    record = SimpleNamespace(now={"draws": False})
    draws = Draws(record)  # type: ignore[arg-type]
    for seed, drawn in ((3, 0), (3, 1)):
        draws.begin()
        torch.manual_seed(seed)
        torch.rand(drawn)
        draws.end()
        assert record.now["draws"] is bool(drawn)
