"""Parameters get the reference's names, even if a script calls a wrapper of the model."""

from __future__ import annotations

import pytest

from harness.rank.probe.exchange import Step
from harness.training.probe.compare.reference import as_in

RIGHT = ("embedding.weight", "head.weight", "head.bias")


def step(*names: str, stage: int | None = None) -> Step:
    values = dict.fromkeys(names, 1.0)
    state = {f"{name} exp_avg": 2.0 for name in names}
    return Step(grad=values, update=values, state=state, parts=[values], stage=stage)


@pytest.mark.parametrize(
    ("names", "reference"),
    [
        ([f"model.{name}" for name in RIGHT], RIGHT),
        (RIGHT, [f"model.{name}" for name in RIGHT]),
        (["model.head.weight", "model.head.bias"], RIGHT),  # a stage of a pipeline
    ],
)
def test_a_prefix_more_or_less_does_not_matter(names: list[str], reference: list[str]) -> None:
    (record,) = as_in(step(*reference), [step(*names)])
    assert set(record.update) == set(record.parts[0]) <= set(reference)
    assert set(record.state) == {f"{name} exp_avg" for name in record.update}
    assert len(record.grad) == len(names)
    assert record.raw is None


@pytest.mark.parametrize(
    "names",
    [
        ["model.embedding.weight", "other.head.weight"],
        ["parameter 0", "parameter 1"],
        ["embedding.weight", "model.head.weight"],  # one has the name of the reference
        ["xembedding.weight"],
    ],
)
def test_other_names_stay_as_they_are(names: list[str]) -> None:
    (record,) = as_in(step(*RIGHT), [step(*names)])
    assert list(record.update) == names


def test_a_stage_has_its_number_before_its_names_if_the_reference_has_it() -> None:
    reference = step("0.weight", "1.0.weight", "2.0.weight", "3.0.weight")
    stage_1 = step("0.weight", "3.0.weight", stage=1)
    (record,) = as_in(reference, [stage_1])
    assert list(record.update) == ["1.0.weight", "3.0.weight"]
    (stage_0,) = as_in(reference, [step("0.weight", stage=0)])
    assert list(stage_0.update) == ["0.weight"]
