"""A layer with an adapter computes the same before and after the merge."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from harness.rank.guard.posting.posts import Alarm
from harness.rank.guard.subscribers.merges import Merge


class Adapter(nn.Module):
    """A linear layer with an adapter that has a bias, as PEFT's."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.base_layer = nn.Linear(16, 16, dtype=dtype)
        self.down = nn.Linear(16, 2, bias=False, dtype=dtype)
        self.up = nn.Linear(2, 16, dtype=dtype)
        self.base_layer.requires_grad_(False)
        self.merged_adapters: list[str] = []
        self.drop = nn.Dropout()

    def get_base_layer(self) -> nn.Linear:
        return self.base_layer

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.base_layer(x)
        return outputs if self.merged_adapters else outputs + 4 * self.up(self.down(self.drop(x)))

    @torch.no_grad()
    def merge(self, scaling: float) -> None:
        self.base_layer.weight.add_(4 * self.up.weight @ self.down.weight)
        self.base_layer.bias.add_(scaling * self.up.bias)
        self.merged_adapters.append("default")


def is_alarmed(layer: Adapter, scaling: float, are_kept: bool = True) -> bool:
    """``are_kept``: nothing else has written the adapter since the last step of its training."""
    merge, final = Merge(layer), SimpleNamespace(are_kept=lambda watched: are_kept)
    model = SimpleNamespace(holds=lambda parameters: True, watched=[], final=final)
    merge.begin([SimpleNamespace(model=model)])  # type: ignore[list-item]
    layer.merge(scaling)
    alarms: list[Alarm] = []
    merge.end(alarms.append)
    return bool(alarms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merge_that_changes_the_outputs_is_told(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert is_alarmed(Adapter(), 1)
    assert not is_alarmed(Adapter(dtype), 4)


def test_merge_of_what_the_loop_has_changed_is_not_compared() -> None:
    assert not is_alarmed(Adapter(), 1, are_kept=False)


def test_merge_leaves_modes_and_random_numbers_alone() -> None:
    layer = Adapter().train()
    layer.up.eval()
    state = torch.get_rng_state()
    is_alarmed(layer, 4)
    assert [layer.training, layer.up.training, layer.drop.training] == [True, False, True]
    assert torch.equal(torch.get_rng_state(), state)
