"""Ranks that train on the same rows, if no loader says which these are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Alarm, Post
from tests.guard.judging import gradients, made_posts, no_wrapper

STEPS = 6

Number = Callable[[int, int], int]
"""What the gradients, or the targets, of a step and a rank are made of."""


def judged(
    computed: Number, targets: Number | None = None, change: Any = None, memory: Any = None
) -> list[tuple[int, Alarm]]:
    """The alarms of some steps that are about rows, each with its step."""
    memory = memory or Memory()
    alarms = []
    for step in range(1, STEPS + 1):

        def add(post: Post, step: int = step) -> None:
            post.tensors["computed"] = gradients(computed(step, post.rank))
            if targets is not None:
                post.tensors["targets_sum"] = torch.tensor([targets(step, post.rank)])
            post.check = post.step = step
            if change is not None:
                change(post)

        posts = made_posts({0: add, 1: add})
        alarms += [(step, one) for one in judge(posts, memory) if one.check == "samples"]
    return alarms


def by_step(step: int, rank: int) -> int:
    return step


def without_wrapper(post: Post, reduced: int = 20) -> None:
    no_wrapper(post)
    post.loop.reduced = reduced


@pytest.mark.parametrize("change", [None, without_wrapper])
@pytest.mark.parametrize("targets", [by_step, lambda step, rank: step % 2])
def test_same_gradients_in_several_steps(targets: Number, change: Any) -> None:
    (step, alarm), *_ = judged(by_step, targets, change)

    assert (step, alarm.kind, alarm.ranks) == (4, "shared", [0, 1])


@pytest.mark.parametrize(
    ("computed", "targets"),
    [
        (lambda step, rank: 10 * step + rank, None),
        (lambda step, rank: 10 * step + rank, by_step),  # other images, or other noise
        (by_step, lambda step, rank: 7),  # one batch, which is made up
        (lambda step, rank: 7, None),
        (lambda step, rank: step if step != 3 else rank, None),
    ],
)
def test_gradients_that_say_nothing(computed: Number, targets: Number | None) -> None:
    assert judged(computed, targets) == []


def reads(post: Post) -> None:
    post.data.rows = [(0, [4 * post.rank + number for number in range(4)])]


def gathers(post: Post) -> None:
    post.losses.gathers = True


def has_same_rows(post: Post) -> None:
    for parameter in post.parameters.described:
        parameter.same_rows = True


def has_an_own_loss(post: Post) -> None:
    post.tensors.pop("targets_sum")


def reduces_nothing(post: Post) -> None:
    without_wrapper(post, reduced=1)


def began_elsewhere(post: Post) -> None:
    without_wrapper(post)
    post.tensors["first_bits"] = post.tensors["first_bits"] + post.rank


@pytest.mark.parametrize(
    ("change", "is_named"),
    [
        (reads, False),
        (gathers, True),
        (has_same_rows, False),
        (has_an_own_loss, True),
        (reduces_nothing, True),
        (began_elsewhere, False),
    ],
)
def test_ranks_that_have_the_same_gradients_on_purpose(change: Any, is_named: bool) -> None:
    """A loader says which rows they have, features of all ranks were gathered, tensors are split,
    neither targets nor inputs were seen, or each rank trains a model of its own."""
    memory = Memory()
    assert judged(by_step, by_step, change, memory) == []
    assert ("common rows" in memory.not_seen) == is_named
