"""Ranks that train on the same rows, if no loader says which these are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.rank.guard.checks.views import Alarm, Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posts import Post
from tests.guard.made_posts import made_posts

STEPS = 6


def judged(targets: Any, losses: Any = None, change: Any = None) -> list[tuple[int, Alarm]]:
    """The alarms of some steps, each with its step. ``targets`` and ``losses`` give numbers by
    step and rank."""
    memory = Memory()
    alarms = []
    for step in range(1, STEPS + 1):

        def add(post: Post, step: int = step) -> None:
            post.tensors["targets_sum"] = torch.tensor([targets(step, post.rank)])
            loss = (losses or targets)(step, post.rank)
            post.tensors["roots"] = torch.tensor([1 / (1 + loss)])
            post.check = post.step = step
            if change is not None:
                change(post)

        posts = made_posts({0: add, 1: add})
        alarms += [(step, alarm) for alarm in judge(posts, memory)]
    assert all(alarm.check == "samples" for _, alarm in alarms)
    return alarms


def test_same_targets_and_losses_in_several_steps() -> None:
    (step, alarm), *_ = judged(lambda step, rank: step)

    assert (step, alarm.kind, alarm.ranks) == (4, "shared", [0, 1])


@pytest.mark.parametrize(
    ("targets", "losses"),
    [
        (lambda step, rank: 10 * step + rank, None),
        (lambda step, rank: 7, lambda step, rank: step),  # one batch, which is made up
        (lambda step, rank: step % 3, lambda step, rank: step),
        (lambda step, rank: step, lambda step, rank: 10 * step + rank),  # other images
        (lambda step, rank: step, lambda step, rank: 0),  # a loss that says nothing
        (lambda step, rank: step if step != 3 else rank, None),
    ],
)
def test_targets_that_say_nothing(targets: Any, losses: Any) -> None:
    assert judged(targets, losses) == []


def reads(post: Post) -> None:
    post.rows = [(0, [4 * post.rank + number for number in range(4)])]


def gathers(post: Post) -> None:
    post.gathers = True


def has_same_rows(post: Post) -> None:
    for parameter in post.described:
        parameter.same_rows = True


@pytest.mark.parametrize("change", [reads, gathers, has_same_rows])
def test_ranks_that_have_the_same_targets_on_purpose(change: Any) -> None:
    """A loader says which rows they have, losses are of all ranks, or tensors are split."""
    assert judged(lambda step, rank: step, change=change) == []
