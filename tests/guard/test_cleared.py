"""Gradients that are cleared before a step uses them: lost, or computed for another end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from harness.rank.guard.posting.posts import Post
from harness.rank.guard.trainings.training import Training
from harness.rank.training.parameters import Modules

Moves = Callable[[nn.Module], None]


def nothing(model: nn.Module) -> None:
    pass


def post_of(places: str, batches: int, in_backward: Moves = nothing) -> Post:
    """The post of a step with a backward at each place. The gradients of all but the last one are
    cleared afterwards, or taken by a wrapper in the backward."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training = Training(optimizer, 0)
    training.arm(set(), Modules, lambda handler: handler)
    for count, place in enumerate(places, 1):
        training.begin_backward(place)
        model(torch.ones(1, 3)).sum().backward()
        if count < len(places):
            in_backward(model)
        training.checked.samples.end_backward()
        if count < len(places):
            if in_backward is nothing:
                training.cleared(True, count)
            optimizer.zero_grad()
    training.before_step()
    optimizer.step()
    assert training.after_step(len(places), batches)
    post = training.post(0)
    training.disarm()
    return post


@pytest.mark.parametrize(("is_wrapped", "foreign"), [(False, 2), (True, 0)])
def test_copies_that_a_wrapper_steps_are_not_foreign(is_wrapped: bool, foreign: int) -> None:
    model = nn.Linear(3, 2)
    copies = [weight.detach().clone().requires_grad_() for weight in model.parameters()]
    optimizer = torch.optim.SGD(copies, 0.1)
    training = Training(optimizer, 0)
    training.arm(set(), Modules, lambda handler: handler)
    training.begin_backward("")
    model(torch.ones(1, 3)).sum().backward()
    training.checked.samples.end_backward()
    if is_wrapped:
        training.begin_wrapper_step()
        training.role.inner_steps = 1
    training.before_step()
    if is_wrapped:
        training.end_wrapper_step()
    assert training.after_step(1, 1)
    assert training.post(0).gradients.foreign == foreign
    training.disarm()


def take_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = None


def test_gradients_that_a_wrapper_takes_are_not_cleared() -> None:
    post = post_of("aaa", batches=3, in_backward=take_gradients)

    assert post.gradients.dropped == 0
    count = len(post.tensors["used"])
    assert torch.equal(post.tensors["computed"][:count], 3 * post.tensors["used"])


def test_cleared_gradients_are_those_of_a_micro_batch_if_they_were_to_be_reduced_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not post_of("aaa", batches=3).losses.is_whole

    monkeypatch.setattr(Modules, "reduces_later", lambda self: True)
    assert post_of("aaa", batches=3).losses.is_whole


@pytest.mark.parametrize("places", ["aa", "ab"])
def test_gradients_that_are_computed_for_another_end_are_not_lost(places: str) -> None:
    post = post_of(places, batches=1)

    assert post.gradients.dropped == 0
    gradients = post.tensors["used"]  # other modules of this process may follow
    assert torch.equal(post.tensors["computed"][: len(gradients)], gradients)
