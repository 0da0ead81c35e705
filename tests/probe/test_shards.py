"""Ranks that have parts of a model: what is their step, and what they draw."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from harness.rank.probe.exchange import Step
from harness.rank.probe.recording.draws import Draws
from harness.training.probe.compare.reference import without_cleared
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run


def test_a_step_that_would_lose_all_its_rows_has_no_rehearsal() -> None:
    """A pipeline's first stage has all forwards before the backward whose gradients DeepSpeed adds
    up in fp32, and clears."""
    step = Step(rows=[["a"], ["b"]], cleared={"rows": 2, "losses": 0})
    run = Run(Layout("1 rank"), [[step]], seen=[[["a", "b"]]])
    assert without_cleared(run) == run


def test_a_model_that_seeds_its_generators_draws_nothing() -> None:
    """DeepSpeed's pipelines do that before each layer."""
    record = SimpleNamespace(now=Step())
    draws = Draws(record)  # type: ignore[arg-type]
    for seed, drawn in ((3, 0), (3, 1)):
        draws.begin()
        torch.manual_seed(seed)
        torch.rand(drawn)
        draws.end()
        assert record.now.draws is bool(drawn)
