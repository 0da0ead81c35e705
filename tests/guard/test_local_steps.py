"""Ranks that train alone: local SGD averages their weights at last, a forgotten reduction never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.rank.events import Collective, instrument
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import LOCAL_STEPS, judge
from harness.rank.guard.posting.posts import Post
from harness.rank.guard.sampling.collectives import Collectives
from tests.guard.judging import made_posts, uses_its_own
from tests.guard.trainer import Trainer

APART = {("gradients", "mean"), ("replicas", "differ")}


def posts_of(
    step: int, reduced: bool = False, loop_says_so: bool = True, averages: str = ""
) -> list[Post]:
    """Posts of ranks that use the gradients that they computed, as the loop says to DDP or not."""
    posts = made_posts()
    for post in posts:
        post.check, post.step, post.loop.averages = step, step, averages
        if not reduced:
            post.loop.unreduced = loop_says_so
            uses_its_own(post)
    return posts


def kinds(memory: Memory, posts: list[Post]) -> set[tuple[str, str]]:
    return {(alarm.check, alarm.kind) for alarm in judge(posts, memory)} & APART


def test_ranks_that_the_loop_leaves_alone_are_told_after_many_steps_once() -> None:
    memory = Memory()
    assert kinds(memory, posts_of(1)) == kinds(memory, posts_of(LOCAL_STEPS)) == set()
    assert {(one.check, one.kind, one.step) for one in memory.apart.held.values()} == {
        (*kind, 1) for kind in APART
    }
    assert "alone" in " ".join(memory.not_seen.values())

    alarms = judge(posts_of(LOCAL_STEPS + 1), memory)

    assert {(alarm.check, alarm.kind) for alarm in alarms} >= APART
    assert {alarm.step for alarm in alarms if (alarm.check, alarm.kind) in APART} == {1}
    assert not memory.apart.held
    assert "alone" not in " ".join(memory.not_seen.values())


def test_copies_that_differ_where_gradients_are_reduced_are_told() -> None:
    memory = Memory()
    kinds(memory, posts_of(1))
    posts = posts_of(9, reduced=True)
    posts[1].tensors["bits"] += 1
    assert ("replicas", "differ") in kinds(memory, posts)


@pytest.fixture
def collectives() -> Iterator[Collectives]:
    """What is seen of the collectives of a training with two parameters."""
    collectives = Collectives()
    collectives.watch([torch.zeros(4, 3), torch.zeros(5)])
    listener = instrument.on(Collective, before=collectives.called)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield collectives
    dist.destroy_process_group()
    listener.end()


@pytest.mark.parametrize(
    ("sizes", "is_average"),
    [([12, 5], True), ([17], True), ([12], True), ([5], False), ([1, 1], False), ([40], False)],
)
def test_collectives_on_weights_between_steps_are_averages(
    collectives: Collectives, sizes: list[int], is_average: bool
) -> None:
    for size in sizes:  # of gradients
        dist.all_reduce(torch.zeros(size))
    assert not collectives.reason
    assert collectives.reduced == sum(sizes)
    collectives.step_ended()
    for size in sizes:
        dist.all_reduce(torch.zeros(size))
    assert bool(collectives.reason) == is_average


def gather(tensor: torch.Tensor) -> None:
    dist.all_gather([torch.empty_like(tensor)], tensor)


class Gathering(torch.optim.SGD):
    """Gathers its weights in its step."""

    def step(self, closure: Any = None) -> Any:
        gather(self.param_groups[0]["params"][0].detach())


@pytest.mark.parametrize(
    ("before", "after", "gathers"),
    [
        (torch.zeros(4), None, True),
        (torch.zeros(1), None, False),  # a count
        (None, torch.zeros(4), False),  # losses, for a log
        (None, None, False),
    ],
)
def test_what_is_gathered_before_a_loss_may_be_in_it(
    collectives: Collectives, before: Any, after: Any, gathers: bool
) -> None:
    weight = torch.zeros(3, requires_grad=True)
    if before is not None:
        gather(before)
    loss = weight.sum()
    if after is not None:
        gather(after)
    collectives.backward_begins(loss)
    Gathering([weight], 0.1).step()
    collectives.step_ended()
    collectives.backward_begins(weight.sum())
    assert collectives.gathers == gathers


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("training", ["ddp never_reduced", "by_hand never_reduced"])
def test_forgotten_reduction_is_told_at_the_end_of_a_short_training(
    under_guard: Trainer, training: str
) -> None:
    run = under_guard(training, steps=12)

    assert set(run.told) <= APART
    assert {alarm["step"] for alarm in run.alarms} == {1}
    assert run.logs[0].count("ALARM") == len(run.alarms) > 0
