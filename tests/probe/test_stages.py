"""A pipeline calls its stages one by one, and still their parameters get names."""

from __future__ import annotations

import torch
from torch import nn

from harness.rank.probe.recording.parameters import NamedParameters


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


def test_stages_keep_the_names_of_the_whole_model() -> None:
    answer = names(NamedParameters(), Part(0, 1), Part(2))
    assert answer == ["layers.0.weight", "layers.1.weight", "layers.2.weight"]


def test_stages_with_the_same_names_are_told_apart_by_their_order() -> None:
    answer = names(
        NamedParameters(), *(nn.Sequential(nn.Linear(2, 2, bias=False)) for _ in range(3))
    )
    assert answer == ["0.weight", "1.0.weight", "2.0.weight"]


def test_layers_that_know_their_number_in_the_model_have_it_in_their_names() -> None:
    answer = names(NamedParameters(), nn.ModuleList([Layer(3), Layer(4)]))
    assert answer == ["2.weight", "3.weight"]


def test_numbers_that_do_not_count_a_list_up_are_left_out() -> None:
    answer = names(NamedParameters(), nn.ModuleList([Layer(3), Layer(3)]))
    assert answer == ["0.weight", "1.weight"]


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


def test_a_frozen_model_beside_the_one_that_trains_is_no_stage() -> None:
    parameters, reference = NamedParameters(), Part(0).requires_grad_(False)
    names(parameters, Part(0))
    assert names(parameters, reference) == []


def test_frozen_parameters_of_the_model_itself_have_names() -> None:
    assert names(NamedParameters(), Part(0).requires_grad_(False)) == ["layers.0.weight"]


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
