"""transformers' Trainer trains as many epochs as it was asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.rank.guard.data.epochs import missing_epochs


@pytest.mark.parametrize(
    ("requested_epochs", "most_steps", "epoch", "step", "planned", "is_told"),
    [
        (10, -1, 8.0, 20, 20, True),
        (10, -1, 10.0, 30, 30, False),
        (3, -1, 2.99, 300, 300, False),  # the rest of an epoch is dropped
        (1, -1, 0.9, 9, 9, False),  # less than a step
        (10, -1, 4.0, 12, 30, False),  # a callback has stopped it
        (10, 20, 8.0, 20, 20, False),  # a number of steps was asked for
        (10, -1, None, 0, 0, False),
    ],
)
def test_trainer_that_planned_too_few_steps_is_told(
    requested_epochs: float, most_steps: int, epoch: float, step: int, planned: int, is_told: bool
) -> None:
    settings = SimpleNamespace(num_train_epochs=requested_epochs, max_steps=most_steps)
    state = SimpleNamespace(epoch=epoch, global_step=step, max_steps=planned)
    assert [one.kind for one in missing_epochs(settings, state)] == ["short"] * is_told
