"""What is looked at in a saved object, and in a module that is evaluated."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import torch
from torch import nn

from harness.rank import events
from harness.rank.probe.findings.saves import LONGEST, Saves, mappings
from harness.rank.probe.recording.parameters import NamedParameters

WEIGHTS = {"weight": torch.ones(2), "bias": torch.ones(1)}


def places(value: Any) -> list[str]:
    return [where for where, _ in mappings(value, WEIGHTS)]


def test_weights_are_found_in_what_holds_them() -> None:
    assert places({"model": WEIGHTS, "rows": [1, 2]}) == ["model"]
    assert places([[*WEIGHTS.values()], "text"]) == ["0"]
    assert places({"states": [{"ema": WEIGHTS}, (3, WEIGHTS)]}) == ["states.0.ema", "states.1.1"]
    assert places({"a": {"b": {"c": {"d": {"e": WEIGHTS}}}}}) == []


def test_a_long_list_of_lists_takes_no_time() -> None:
    """A thousand entries were searched in each list of a list: of 10^9 tokens, for minutes."""
    rows = [[[7] * LONGEST] * LONGEST] * LONGEST
    began = time.process_time()
    assert places({"rows": rows, "model": WEIGHTS}) == ["model"]
    assert time.process_time() - began < 3


def test_a_list_with_itself_ends() -> None:
    endless: list[Any] = []
    endless += [endless, WEIGHTS]
    assert "1" in list(islice(places(endless), 10))


def test_a_model_without_trained_weights_is_no_copy_of_any() -> None:
    """After three steps the model is replaced, or frozen; then an evaluation looks at a copy."""
    names, model = NamedParameters(), nn.Linear(2, 1)
    list(names.learn(model))
    saves = Saves(names)
    for _ in range(3):
        saves._before_step(events.Gradients(None))
        saves._after_step(events.Step(None))
    model.requires_grad_(False)
    saves._after_step(events.Step(None))
    saves.evaluate(nn.Linear(2, 1))
    assert saves.report() == []
