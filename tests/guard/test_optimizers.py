"""What guard reads of optimizers that are not torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.rank.guard.sampling.optimizers import (
    FUSED,
    MUON,
    instead_of_gradients,
    kind_of,
    step_count,
)


class FusedAdam(torch.optim.Optimizer):
    """As DeepSpeed's: the last parameter with a gradient counts the steps of its group."""

    def __init__(self, parameters: list[Tensor], corrects: bool = True, mode: int = 1) -> None:
        super().__init__(parameters, {"lr": 0.1, "bias_correction": corrects})
        self.adam_w_mode = mode


FusedAdam.__module__ = FUSED.rpartition(".")[0]


@pytest.mark.parametrize(
    ("corrects", "mode", "kind"), [(True, 1, "AdamW"), (True, 0, "Adam"), (False, 1, FUSED)]
)
def test_fused_adam_of_deepspeed_has_the_formula_of_torchs(
    corrects: bool, mode: int, kind: str
) -> None:
    assert kind_of(FusedAdam([torch.zeros(2)], corrects, mode)) == kind


def test_last_parameter_with_a_gradient_counts_the_steps_of_fused_adam() -> None:
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    optimizer = FusedAdam(list(parameters))
    parameters[0].grad = parameters[1].grad = torch.ones(2)
    optimizer.state[parameters[0]]["step"], optimizer.state[parameters[1]]["step"] = 0, 7
    assert step_count(optimizer, optimizer.param_groups[0], parameters[0]) == 7
    plain = torch.optim.AdamW(parameters)
    assert step_count(plain, plain.param_groups[0], parameters[0]) == 0


def test_class_of_another_package_is_not_known_by_its_name() -> None:
    class AdamW(torch.optim.AdamW):
        pass

    assert kind_of(AdamW([torch.zeros(2)])) == f"{__name__}.AdamW"


class MuonWithAuxAdam(torch.optim.Optimizer):
    """As DeepSpeed's: ZeRO gives it flat parts of matrices, whose gradients it has replaced."""

    def __init__(self, *groups: dict[str, object]) -> None:
        super().__init__(groups, {})


MuonWithAuxAdam.__module__ = MUON.rpartition(".")[0]


@pytest.mark.parametrize(
    ("shape", "use_muon", "is_replaced"),
    [([4], True, True), ([2, 2], True, False), ([4], False, False), (None, True, True)],
)
def test_only_flat_parts_of_a_matrix_have_something_else_than_a_gradient_under_muon(
    shape: list[int] | None, use_muon: bool, is_replaced: bool
) -> None:
    """At stage 3 a group has no parameters between the steps."""
    optimizer = MuonWithAuxAdam({"params": [torch.zeros(shape or 1)], "use_muon": use_muon})
    if shape is None:
        optimizer.param_groups[0]["params"] = []
    assert bool(instead_of_gradients(optimizer)) is is_replaced
