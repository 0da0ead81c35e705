"""The judge: what it says of accumulated losses, of their terms, and of those of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Alarm, Post
from tests.guard.judging import Change, judged, kinds, later, made_posts, on_all, with_losses


def alarms_of_step(change: Change, checks: int = 1, trainer: bool = False) -> list[Alarm]:
    """What is told of a step with this change on all ranks."""
    memory, alarms = Memory(), list[Alarm]()
    for check in range(1, checks + 1):
        posts = made_posts(on_all(change))
        for post in posts:
            post.check = check
        posts[0].run.facts = {"releases": {}, "settings": {"trainer": trainer}}
        alarms += judge(posts, memory)
    return alarms


def row(*numbers: float) -> Change:
    """A micro-batch: its loss and its value, its weight, its count and its scale."""
    return lambda post: post.tensors.update(losses=torch.tensor(numbers))


def of_a_split_model(post: Post) -> None:
    with_losses(0.5)(post)
    post.parameters.described[0].left_out = "DTensors of tensor parallelism"


def planned(number: int, steps: int, *weights: float) -> Change:
    """The loop divides by a number of micro-batches, and has taken so many steps alike."""

    def change(post: Post) -> None:
        with_losses(*weights)(post)
        post.losses.planned, post.losses.equal_steps = number, steps

    return change


def whole(*weights: float) -> Change:
    """Losses that are whole, whatever function computed them."""

    def change(post: Post) -> None:
        with_losses(*weights)(post)
        post.losses.whole_losses = True

    return change


def divided_later(post: Post) -> None:
    whole(*(1.0,) * 4)(post)
    for parameter in post.parameters.described:
        parameter.left_out = "they are elsewhere"
    post.gradients.computed = {}
    del post.tensors["computed"], post.tensors["used"], post.tensors["places"]


def beside_no_mean(post: Post) -> None:
    whole(*(1.0,) * 4)(post)
    post.tensors["used"][0] += 9


def last_stage(post: Post) -> None:
    whole(*(1.0,) * 4)(post)
    if not post.rank:
        del post.tensors["losses"]
        post.losses.goes_on = True


def stage_goes_on(ratio: float) -> Change:
    """With such a multiple of the gradient of the next stage."""

    def change(post: Post) -> None:
        if not post.rank:
            del post.tensors["losses"]
            post.losses.goes_on, post.tensors["passed"] = True, torch.tensor([ratio] * 4)

    return change


NAN, INF, THIRD = float("nan"), float("inf"), 1 / 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (with_losses(1.0), []),
        (with_losses(*(0.25,) * 4), []),
        (with_losses(*(1.0,) * 4), ["weight"]),
        (with_losses(*(1 / 16,) * 4), ["weight"]),
        (with_losses(*(0.125,) * 4), ["weight"]),
        (with_losses(*(0.25 * 1.005,) * 4), []),
        (with_losses(*(0.25 * 0.97,) * 4), []),  # a loop may divide by what it wants
        (with_losses(*(0.25 * 0.3,) * 4), []),  # the user's own weight of the loss
        (of_a_split_model, []),
        ({0: with_losses(0.5), 1: with_losses(1.5)}, []),  # other lengths are averaged
        ({0: with_losses(1.0, 1.0)}, []),  # without those of one rank
        (row(9.0, 2.0, 4.0, 1.0, 1.0), []),  # it has other terms
        (row(NAN, NAN, 4.0, 1.0, 1.0), []),
        (row(INF, INF, 4.0, 1.0, 1.0), []),
        (planned(3, 4, THIRD), ["early"]),
        (planned(3, 4, THIRD, THIRD), ["early"]),
        (planned(3, 3, THIRD), []),  # the end of an epoch
        (planned(0, 4, THIRD), []),
        (planned(3, 4, 1.0), []),  # the loop divides by what it does
        (planned(3, 4, THIRD, THIRD, THIRD), []),
        (whole(*(1.0,) * 4), ["weight"]),
        (whole(*(1 / 16,) * 4), ["weight"]),
        (whole(*(0.25,) * 4), []),
        (whole(*(0.5,) * 4), []),  # a constant of the user's own
        (divided_later, []),
        (beside_no_mean, ["mean"]),
        (last_stage, ["weight"]),
        (stage_goes_on(0.25), ["stages"]),
        (stage_goes_on(1.0), []),
        (stage_goes_on(NAN), []),
    ],
)
def test_alarms_of_a_step(changes: Any, expected: list[str]) -> None:
    assert kinds(judged(changes)) == expected


@pytest.mark.parametrize("size", [2, 5])
def test_factors_that_are_equal_are_all_named(size: int) -> None:
    """With as many ranks as micro-batches; 1/5**2 and 1/(5*5) may be rounded apart."""
    (alarm,) = judge(made_posts(on_all(with_losses(*[1 / size**3] * size), size), size), later())
    assert alarm.factors == ["1/(ranks*k)", "1/k**2"]


@pytest.mark.parametrize(("weight", "expected"), [(1.0, ["weight"]), (0.5, []), (0.0, [])])
def test_number_that_may_be_a_weight_of_the_loop_is_no_count(
    weight: float, expected: list[str]
) -> None:
    def change(post: Post) -> None:
        with_losses(0.25, 0.25)(post)
        post.losses.weight = weight

    memory = later()
    assert kinds(judged(change, memory)) == expected
    assert ("weight" in memory.not_seen) == (not expected)


def test_term_that_becomes_almost_0_is_still_a_term() -> None:
    """Half of a loss of classes and half of another one: the other one vanishes in the training."""

    memory = Memory()
    for check in range(1, 8):

        def change(post: Post, check: int = check) -> None:
            with_losses(0.5)(post)
            post.check = check
            post.tensors["losses"][0] += 0.3 if check == 1 else 1e-4

        assert judged(change, memory) == []


# -- the Trainer --


def counted(count: float) -> Change:
    """A sum of so many tokens, which the Trainer divides by 16."""
    return with_losses(1 / 16, count=count)


def terms(factor: float, weight: float, count: float, value: float = 2.0) -> Change:
    """Two micro-batches whose losses of 9 have other terms."""

    def change(post: Post) -> None:
        post.tensors["losses"] = torch.tensor([9.0, value, weight, count, 1.0] * 2)
        post.losses.factor = factor

    return change


def targets(*pairs: tuple[int, int]) -> Change:
    """Micro-batches whose losses are means over so many of their targets."""

    def change(post: Post) -> None:
        with_losses(*[1 / len(pairs)] * len(pairs))(post)
        post.tensors["targets"] = torch.tensor(pairs).flatten().float()

    return change


@pytest.mark.parametrize(
    ("change", "checks", "expected"),
    [
        (counted(12.0), 1, ["tokens"]),
        (counted(2048.0), 1, []),  # as many sequences: a user's own loss
        (counted(16.0), 1, []),
        (counted(7.0), 1, ["weight"]),  # and it divides once more by the two micro-batches
        (terms(2.0, 0.05, 10.0), 1, ["terms"]),
        (terms(1.0, 0.05, 10.0), 1, []),
        (terms(4.0, 0.05, 10.0), 1, []),
        (terms(2.0, 0.5, 1.0), 1, []),  # a mean, that the loop weighs as it likes
        (terms(2.0, 0.01, 10.0), 1, []),
        # Those of Mixtral are 0.04 % of its loss, with the coefficient of its configuration.
        (terms(2.0, 0.05, 10.0, value=8.999 / 0.05), 1, ["terms"]),
        (terms(1.0, 0.05, 10.0, value=8.999 / 0.05), 1, []),
        (targets((3, 16), (13, 16)), 5, ["uneven"]),
        (targets((3, 16), (13, 16)), 1, []),
        (targets((10, 16), (13, 16)), 5, []),
        (targets((4, 4), (16, 16)), 5, []),  # the last batch of an epoch has fewer rows
    ],
)
def test_alarms_of_the_trainer_are_not_those_of_another_loop(
    change: Change, checks: int, expected: list[str]
) -> None:
    alarms = alarms_of_step(change, checks, trainer=True)
    assert kinds(alarms) == expected
    assert all("4 times" in alarm.text for alarm in alarms if alarm.kind == "terms")
    assert alarms_of_step(change, checks) == []
