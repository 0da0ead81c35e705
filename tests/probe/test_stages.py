"""Parameters get the names that they have in the reference, in a pipeline that calls its stages one
by one, and in a wrapper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.rank.probe.exchange import Step
from harness.rank.probe.recording.parameters import NamedParameters
from harness.training.probe.compare.reference import as_in


class Part(nn.Module):
    """The layers of a stage, by their numbers in the whole model."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(n): nn.Linear(2, 2, bias=False) for n in numbers})

    def weight(self, number: int) -> torch.Tensor:
        return self.get_parameter(f"layers.{number}.weight")


class Layer(nn.Linear):
    """A layer that knows its number in the model, from 1, as layers of megatron-core do."""

    def __init__(self, number: int) -> None:
        super().__init__(2, 2, bias=False)
        self.layer_number = number


def names(parameters: NamedParameters, *modules: nn.Module) -> list[str]:
    return [name for module in modules for name, _ in parameters.learn(module)]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([Part(0, 1), Part(2)], ["layers.0.weight", "layers.1.weight", "layers.2.weight"]),
        # Those with the same names are told apart by their order.
        ([nn.Sequential(Layer(0)) for _ in range(3)], ["0.weight", "1.0.weight", "2.0.weight"]),
        ([nn.ModuleList([Layer(3), Layer(4)])], ["2.weight", "3.weight"]),
        ([nn.ModuleList([Layer(3), Layer(3)])], ["0.weight", "1.weight"]),  # they count nothing up
        # A frozen model beside the one that trains is no stage; what the model itself freezes is.
        ([Part(0), Part(0).requires_grad_(False)], ["layers.0.weight"]),
        ([Part(0).requires_grad_(False)], ["layers.0.weight"]),
    ],
)
def test_stages_have_the_names_of_the_whole_model(
    stages: list[nn.Module], expected: list[str]
) -> None:
    assert names(NamedParameters(), *stages) == expected


def test_a_stage_is_learnt_once_and_gets_its_new_parameters_later() -> None:
    parameters, stage = NamedParameters(), Part(0)
    assert names(parameters, stage) == ["layers.0.weight"]
    assert names(parameters, stage) == []
    stage.layers["0"].weight = nn.Parameter(torch.zeros(2, 2))
    assert names(parameters, stage) == ["layers.0.weight"]


def test_a_part_of_the_model_that_is_called_alone_is_known_already() -> None:
    parameters, model = NamedParameters(), Part(0, 1)
    names(parameters, model)
    assert names(parameters, model.layers["1"]) == []


def test_a_view_of_a_piece_has_the_name_of_the_whole_parameter() -> None:
    parameters, model = NamedParameters(), Part(0, 1)
    names(parameters, model)
    weight = model.weight(1)
    assert parameters.name(weight) == "layers.1.weight"
    assert parameters.starts == {}
    assert parameters.name(weight.detach().view(-1)[2:]) == "layers.1.weight"
    assert parameters.starts == {"layers.1.weight": 2}


def test_a_tensor_with_values_of_its_own_has_no_name() -> None:
    parameters, model = NamedParameters(), Part(0)
    names(parameters, model)
    assert parameters.name(torch.zeros(4)) is None
    assert parameters.name(model.weight(0).detach().clone().view(-1)) is None


def test_a_tensor_is_found_when_its_stage_is_called_later() -> None:
    parameters, late = NamedParameters(), Part(1)
    assert parameters.name(late.weight(1)) is None
    names(parameters, late)
    assert parameters.name(late.weight(1)) == "layers.1.weight"


RIGHT = ("embedding.weight", "head.weight", "head.bias")


def recorded_step(*names: str, stage: int | None = None) -> Step:
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
    (record,) = as_in(recorded_step(*reference), [recorded_step(*names)])
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
    (record,) = as_in(recorded_step(*RIGHT), [recorded_step(*names)])
    assert list(record.update) == names


def test_a_stage_has_its_number_before_its_names_if_the_reference_has_it() -> None:
    reference = recorded_step("0.weight", "1.0.weight", "2.0.weight", "3.0.weight")
    stage_1 = recorded_step("0.weight", "3.0.weight", stage=1)
    (record,) = as_in(reference, [stage_1])
    assert list(record.update) == ["1.0.weight", "3.0.weight"]
    (stage_0,) = as_in(reference, [recorded_step("0.weight", stage=0)])
    assert list(stage_0.update) == ["0.weight"]
