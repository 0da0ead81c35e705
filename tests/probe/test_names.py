"""Parameters have the reference's names, also if a script calls what contains the model."""

from __future__ import annotations

from typing import Any

import pytest

from harness.probe.compare.reference import as_in

RIGHT = ("embedding.weight", "head.weight", "head.bias")


def step(*names: str) -> dict[str, Any]:
    values = dict.fromkeys(names, 1.0)
    state = {f"{name} exp_avg": 2.0 for name in names}
    return {"grad": values, "update": values, "raw": None, "state": state, "parts": [values]}


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ([f"model.{name}" for name in RIGHT], RIGHT),
        (RIGHT, [f"model.{name}" for name in RIGHT]),
        (["model.head.weight", "model.head.bias"], RIGHT),  # a stage of a pipeline
    ],
)
def test_a_prefix_more_or_less_does_not_matter(here: list[str], there: list[str]) -> None:
    (found,) = as_in(step(*there), [step(*here)])
    assert set(found["update"]) == set(found["parts"][0]) <= set(there)
    assert set(found["state"]) == {f"{name} exp_avg" for name in found["update"]}
    assert len(found["grad"]) == len(here)
    assert found["raw"] is None


@pytest.mark.parametrize(
    "here",
    [
        ["model.embedding.weight", "other.head.weight"],
        ["parameter 0", "parameter 1"],
        ["embedding.weight", "model.head.weight"],  # one has the name of the reference
        ["xembedding.weight"],
    ],
)
def test_other_names_stay_as_they_are(here: list[str]) -> None:
    (found,) = as_in(step(*RIGHT), [step(*here)])
    assert list(found["update"]) == here


def test_a_stage_has_its_number_before_its_names_if_the_reference_has_it() -> None:
    right = step("0.weight", "1.0.weight", "2.0.weight", "3.0.weight")
    here = {**step("0.weight", "3.0.weight"), "stage": 1}
    (found,) = as_in(right, [here])
    assert list(found["update"]) == ["1.0.weight", "3.0.weight"]
    (first,) = as_in(right, [{**step("0.weight"), "stage": 0}])
    assert list(first["update"]) == ["0.weight"]


def test_names_of_the_whole_model_need_no_number() -> None:
    right = step("layers.0.weight", "layers.1.weight")
    (found,) = as_in(right, [{**step("layers.1.weight"), "stage": 1}])
    assert list(found["update"]) == ["layers.1.weight"]
