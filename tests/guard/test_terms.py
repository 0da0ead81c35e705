"""Losses that are whole, have other terms, come through a pipeline, or are means over tokens."""

from __future__ import annotations

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Alarm, Post
from tests.guard.made_posts import Change, made_posts, with_losses


def alarms_of_step(change: Change, checks: int = 1, trainer: bool = False) -> list[Alarm]:
    """What is told of a step with this change on all ranks."""
    memory, alarms = Memory(), list[Alarm]()
    for check in range(1, checks + 1):
        posts = made_posts(dict.fromkeys(range(2), change))
        for post in posts:
            post.check = check
        posts[0].run.facts = {"settings": {"trainer": trainer}}
        alarms += judge(posts, memory)
    return alarms


def whole(*weights: float) -> Change:
    def change(post: Post) -> None:
        with_losses(*weights)(post)
        post.losses.whole_losses = True

    return change


@pytest.mark.parametrize(
    ("weights", "kinds"),
    [
        ((1.0,) * 4, ["weight"]),
        ((1 / 16,) * 4, ["weight"]),
        ((0.25,) * 4, []),
        ((0.5,) * 4, []),  # a constant of the user's own
    ],
)
def test_whole_losses_are_counted_by_their_micro_batches(
    weights: tuple[float, ...], kinds: list[str]
) -> None:
    assert [alarm.kind for alarm in alarms_of_step(whole(*weights))] == kinds


def test_whole_losses_say_nothing_if_gradients_may_be_divided_later() -> None:
    def change(post: Post) -> None:
        whole(*(1.0,) * 4)(post)
        for parameter in post.parameters.described:
            parameter.left_out = "they are elsewhere"
        post.gradients.computed = {}
        del post.tensors["computed"], post.tensors["used"], post.tensors["places"]

    assert alarms_of_step(change) == []


def test_whole_losses_say_nothing_beside_gradients_that_are_no_mean() -> None:
    def change(post: Post) -> None:
        whole(*(1.0,) * 4)(post)
        post.tensors["used"][0] += 9

    assert [(alarm.check, alarm.kind) for alarm in alarms_of_step(change)] == [
        ("gradients", "mean")
    ]


def test_losses_of_the_last_stage_are_those_of_a_pipeline() -> None:
    def change(post: Post) -> None:
        whole(*(1.0,) * 4)(post)
        if not post.rank:
            del post.tensors["losses"]
            post.losses.goes_on = True

    (alarm,) = alarms_of_step(change)
    assert (alarm.check, alarm.kind) == ("accumulation", "weight")
    assert "4 times instead of once" in alarm.text


@pytest.mark.parametrize(("ratio", "kinds"), [(0.25, ["stages"]), (1.0, []), (float("nan"), [])])
def test_stage_goes_on_with_the_gradient_of_the_next_one(ratio: float, kinds: list[str]) -> None:
    def change(post: Post) -> None:
        if not post.rank:
            del post.tensors["losses"]
            post.losses.goes_on, post.tensors["passed"] = True, torch.tensor([ratio] * 4)

    alarms = alarms_of_step(change)
    assert [alarm.kind for alarm in alarms] == kinds
    assert all(alarm.ranks == [0] for alarm in alarms)


def with_terms(factor: float, weight: float, count: float, value: float = 2.0) -> Change:
    """Two micro-batches whose losses of 9 have other terms."""

    def change(post: Post) -> None:
        row = [9.0, value, weight, count, 1.0]
        post.tensors["losses"], post.losses.factor = torch.tensor(row * 2), factor

    return change


@pytest.mark.parametrize(
    ("factor", "weight", "count", "kinds"),
    [
        (2.0, 0.05, 10.0, ["terms"]),
        (1.0, 0.05, 10.0, []),
        (4.0, 0.05, 10.0, []),
        (2.0, 0.5, 1.0, []),  # a mean, that the loop weighs as it likes
        (2.0, 0.01, 10.0, []),
    ],
)
def test_terms_that_are_not_divided_by_tokens_are_not_multiplied_by_ranks(
    factor: float, weight: float, count: float, kinds: list[str]
) -> None:
    alarms = alarms_of_step(with_terms(factor, weight, count), trainer=True)
    assert [alarm.kind for alarm in alarms] == kinds
    assert alarms_of_step(with_terms(factor, weight, count)) == []
    assert all("4 times" in alarm.text for alarm in alarms)


def test_small_terms_are_terms_if_the_loop_multiplies_them() -> None:
    """Those of Mixtral are 0.04 % of its loss, with the coefficient of its configuration."""
    for factor, kinds in ((2.0, ["terms"]), (1.0, [])):
        alarms = alarms_of_step(with_terms(factor, 0.05, 10.0, value=8.999 / 0.05), trainer=True)
        assert [alarm.kind for alarm in alarms] == kinds


def with_targets(*targets: tuple[int, int]) -> Change:
    """Micro-batches whose losses are means over so many of their targets."""

    def change(post: Post) -> None:
        with_losses(*[1 / len(targets)] * len(targets))(post)
        post.tensors["targets"] = torch.tensor(targets).flatten().float()

    return change


@pytest.mark.parametrize(
    ("targets", "checks", "trainer", "kinds"),
    [
        (((3, 16), (13, 16)), 5, True, ["uneven"]),
        (((3, 16), (13, 16)), 1, True, []),
        (((3, 16), (13, 16)), 5, False, []),
        (((10, 16), (13, 16)), 5, True, []),
        (((4, 4), (16, 16)), 5, True, []),  # the last batch of an epoch has fewer rows
    ],
)
def test_tokens_of_micro_batches_count_alike_in_the_trainer(
    targets: tuple[tuple[int, int], ...], checks: int, trainer: bool, kinds: list[str]
) -> None:
    assert [
        alarm.kind for alarm in alarms_of_step(with_targets(*targets), checks, trainer)
    ] == kinds


def test_term_that_becomes_almost_0_is_still_a_term() -> None:
    """Half of a loss of classes and half of another one: the other one vanishes in the training."""
    memory = Memory()
    for check in range(1, 8):
        posts = made_posts(dict.fromkeys(range(2), with_losses(0.5)))
        for post in posts:
            post.check = check
            post.tensors["losses"][0] += 0.3 if check == 1 else 1e-4
        assert judge(posts, memory) == []
