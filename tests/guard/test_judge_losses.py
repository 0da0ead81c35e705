"""The judge: what it says of accumulated losses."""

from __future__ import annotations

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Post
from tests.guard.judging import judged, on_all
from tests.guard.made_posts import made_posts, with_losses


@pytest.mark.parametrize(
    ("weights", "kinds"),
    [
        ((1.0,), []),
        ((0.25,) * 4, []),
        ((1.0,) * 4, ["weight"]),
        ((1 / 16,) * 4, ["weight"]),
        ((0.125,) * 4, ["weight"]),
        ((0.25 * 1.005,) * 4, []),
        ((0.25 * 0.97,) * 4, []),  # a loop may divide by what it wants
        ((0.25 * 0.3,) * 4, []),  # the user's own weight of the loss
    ],
)
def test_losses_count_once(weights: tuple[float, ...], kinds: list[str]) -> None:
    alarms = judged(on_all(with_losses(*weights)))
    assert [(alarm.check, alarm.kind) for alarm in alarms] == [
        ("accumulation", kind) for kind in kinds
    ]


@pytest.mark.parametrize("size", [2, 5])
def test_factors_that_are_equal_are_all_named(size: int) -> None:
    """With as many ranks as micro-batches; 1/5**2 and 1/(5*5) may be rounded apart."""
    weight = with_losses(*[1 / size**3] * size)
    (alarm,) = judge(made_posts(dict.fromkeys(range(size), weight), size), Memory())
    assert alarm.factors == ["1/(ranks*k)", "1/k**2"]


@pytest.mark.parametrize(
    ("trainer", "count", "kinds"),
    [
        (True, 12.0, ["tokens"]),  # the Trainer counted 16 tokens, and the loss is a sum of 12
        (False, 12.0, []),  # a loop may divide by what it wants
        (True, 2048.0, []),  # as many sequences: a user's own loss
        (True, 16.0, []),
        (True, 7.0, ["weight"]),  # and it divides once more by the two micro-batches
        (False, 7.0, []),
    ],
)
def test_trainer_divides_a_sum_by_its_tokens(trainer: bool, count: float, kinds: list[str]) -> None:
    posts = made_posts(dict.fromkeys(range(2), with_losses(1 / 16, count=count)))
    posts[0].run.facts = {"releases": {}, "settings": {"trainer": trainer}}

    alarms = judge(posts, Memory())
    assert [alarm.kind for alarm in alarms] == kinds


def test_ranks_of_a_split_model_have_one_loss() -> None:
    def change(post: Post) -> None:
        with_losses(0.5)(post)
        post.parameters.described[0].left_out = "DTensors of tensor parallelism"

    assert "accumulation" not in {alarm.check for alarm in judged(on_all(change))}


def test_losses_of_ranks_with_other_lengths_are_averaged() -> None:
    assert judged({0: with_losses(0.5), 1: with_losses(1.5)}) == []


def test_loss_with_other_terms_is_not_judged() -> None:
    def change(post: Post) -> None:
        post.tensors["losses"] = torch.tensor([9.0, 2.0, 4.0, 1.0, 1.0])

    assert judged(on_all(change)) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_is_not_judged(value: float) -> None:
    def change(post: Post) -> None:
        post.tensors["losses"] = torch.tensor([value, value, 4.0, 1.0, 1.0])

    assert judged(on_all(change)) == []


def test_losses_are_not_judged_without_those_of_one_rank() -> None:
    assert judged({0: with_losses(1.0, 1.0)}) == []


@pytest.mark.parametrize(
    ("weights", "planned", "steps", "kinds"),
    [
        ((1 / 3,), 3, 4, ["early"]),
        ((1 / 3, 1 / 3), 3, 4, ["early"]),
        ((1 / 3,), 3, 3, []),  # the end of an epoch
        ((1 / 3,), 0, 4, []),
        ((1.0,), 3, 4, []),  # the loop divides by what it does
        ((1 / 3,) * 3, 3, 4, []),
    ],
)
def test_step_comes_after_as_many_micro_batches_as_its_losses_are_divided_by(
    weights: tuple[float, ...], planned: int, steps: int, kinds: list[str]
) -> None:
    posts = made_posts(dict.fromkeys(range(2), with_losses(*weights)))
    for post in posts:
        post.losses.planned, post.losses.equal_steps = planned, steps
    alarms = judge(posts, Memory())
    assert [alarm.kind for alarm in alarms if alarm.kind == "early"] == kinds


@pytest.mark.parametrize(("weight", "kinds"), [(1.0, ["weight"]), (0.5, []), (0.0, [])])
def test_number_that_may_be_a_weight_of_the_loop_is_no_count(
    weight: float, kinds: list[str]
) -> None:
    def change(post: Post) -> None:
        with_losses(0.25, 0.25)(post)
        post.losses.weight = weight

    memory = Memory()
    alarms = judge(made_posts(dict.fromkeys(range(2), change)), memory)
    assert [alarm.kind for alarm in alarms] == kinds
    assert ("weight" in memory.not_seen) == (not kinds)
