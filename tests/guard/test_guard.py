"""What guard keeps of the models that it watches."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn

from harness.rank.guard.parameters import Modules
from harness.rank.guard.training import Training


def armed() -> tuple[Training, nn.Module, torch.optim.Optimizer]:
    """A training in a check."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    training = Training(optimizer, 0)
    training.arm(set(), Modules, lambda hook: hook)
    return training, model, optimizer


def hooks(model: nn.Module) -> int:
    return sum(len(parameter._backward_hooks or {}) for parameter in model.parameters())


def test_check_has_hooks_until_it_ends() -> None:
    training, model, _optimizer = armed()
    assert hooks(model) == 2
    training.disarm()
    assert hooks(model) == 0


def test_model_is_freed_with_its_optimizer() -> None:
    training, model, optimizer = armed()
    weight: Any = weakref.ref(model.weight)
    del model, optimizer
    gc.collect()
    assert weight() is None
    assert not training.due
