"""A file gets weights that are not empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import LAST, Post
from harness.rank.guard.states.training_states import States
from harness.rank.guard.trainings.training import Training
from harness.rank.training.parameters import Modules, watched

Weights = dict[str, Tensor]


def alarm_kinds(content: Callable[[Weights, Weights], Any]) -> list[str]:
    """The kinds of alarms of a training that saves a state. The function makes it of the weights of
    the beginning and of those that are trained."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first_weights = {name: value.clone() for name, value in model.state_dict().items()}
    training = Training(optimizer, 0)
    training.arm(set(), Modules, lambda handler: handler)
    training.begin_backward("")
    model(torch.ones(1, 3)).sum().backward()
    training.checked.samples.end_backward()
    training.before_step()
    optimizer.step()
    training.after_step(1, 1)
    training.post(0)
    training.disarm()
    training.model.is_complete = True  # other tests of this process may have a group
    state = content(first_weights, model.state_dict())
    training.note_file("/folder/last.ckpt", state)
    training.save("/folder/last.ckpt", None, [], [])
    post = training.last_post(0)
    assert post.check == LAST
    return [alarm.kind for alarm in judge([unpacked(packed(post))], Memory())]


def change_weights(weights: Weights) -> Weights:
    return {name: value.lerp(torch.ones_like(value), 0.5) for name, value in weights.items()}


def filled(weights: Weights, value: float) -> Weights:
    return {name: torch.full_like(weight, value) for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        (lambda first, now: {"state_dict": first}, []),  # an average that begins later
        (lambda first, now: {"model": filled(now, 0.0)}, ["empty"]),
        (lambda first, now: filled(now, torch.nan), ["empty"]),
        (lambda first, now: {"model": now}, []),
        (lambda first, now: {"model": {n: v.clone() for n, v in now.items()}}, []),
        (lambda first, now: {"model": now, "reference": first}, []),
        (lambda first, now: {"model": change_weights(now)}, []),  # an average
        (lambda first, now: {"model": {**now, "bias": first["bias"]}}, []),
        (lambda first, now: {"weight": first["weight"]}, []),
        (lambda first, now: {"model": {n: v.bfloat16() for n, v in first.items()}}, []),
    ],
)
def test_file_with_other_weights_is_told(content: Any, kinds: list[str]) -> None:
    assert alarm_kinds(content) == kinds


def test_another_model_with_the_same_names_is_not_looked_at() -> None:
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], 0.1)
    watched_weights = [
        replace(one, described=replace(one.described, name=name))
        for one, name in zip(
            watched(optimizer, Modules(), set()), ["weight", "bias", "weight", "bias"], strict=False
        )
    ]
    states, post = States(), Post(0, 0, LAST)
    states.note_values(1, watched_weights, "last.ckpt", {"model": models[0].state_dict()})
    states.describe(post)
    assert [part[0] for part in post.states[0].parts] == ["weight", "bias"]
