"""What guard keeps of the models that it watches."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from harness.rank import events
from harness.rank.guard.trainings import training
from harness.rank.guard.trainings.training import Training
from harness.rank.training.parameters import Modules


def armed() -> tuple[Training, nn.Module, torch.optim.Optimizer]:
    """A training in a check."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    training = Training(optimizer, 0)
    training.arm(set(), Modules, lambda hook: hook)
    return training, model, optimizer


def hooks(model: nn.Module) -> int:
    return sum(len(parameter._backward_hooks or {}) for parameter in model.parameters())


def test_training_of_a_package_that_reduces_is_not_alone() -> None:
    """Its forward may call collectives, which are no averages of weights."""
    training, *_ = armed()
    assert training.checked.is_unreduced
    assert training.model.modules is not None
    training.model.modules.has_engine = True
    assert not training.checked.is_unreduced
    training.disarm()


def test_step_without_a_backward_puts_the_check_off() -> None:
    """DeepSpeed steps once without gradients, to make the optimizer's state."""
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    training = Training(optimizer, 0)
    assert not training.after_step(0)
    assert training.due


def test_second_training_of_a_process_counts_its_own_micro_batches() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    training = Training(optimizer, 1, backwards=6)
    for backwards in range(7, 13):
        training.after_step(backwards)
    assert training.counts.first == 1
    assert training.alarms == []


def test_backward_of_the_graph_is_an_event_whoever_calls_it() -> None:
    weight, roots = torch.ones(2, requires_grad=True), []
    subscription = events.instrument.on(
        events.GraphBackward, before=lambda event: roots.append(event.owner)
    )
    loss = weight.sum()
    loss.backward()
    roots_of_torch: Any = (part * 2 for part in weight)
    torch.autograd.backward(roots_of_torch)
    subscription.end()
    assert roots[0] is loss
    assert roots[1:] == [None]
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]


def test_model_is_freed_with_its_optimizer() -> None:
    training, model, optimizer = armed()
    weight: Any = weakref.ref(model.weight)
    del model, optimizer
    gc.collect()
    assert weight() is None
    assert not training.due


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_optimizer_that_lives_until_python_ends_is_let_go_without_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), 0.1)
    watched = training.Training(optimizer, 0)
    monkeypatch.setattr(training, "CheckedStep", None)  # as Python clears modules at its end
    del optimizer
    gc.collect()

    assert watched.optimizer() is None
