"""Mailboxes of two ranks with one store: what is posted is judged, and nobody waits for anybody."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch.distributed as dist

from harness.rank.guard import mailbox
from harness.rank.guard.budget import FIRST_CHECKS, Cost
from harness.rank.guard.mailbox import Mailbox
from harness.rank.guard.posts import Post
from tests.guard.made_posts import made_posts


@dataclass
class Stepping:
    """A training that has made some steps."""

    steps: int = 1
    check: int = 1
    next_step: int | None = None

    def cost(self, thread: float) -> Cost:
        return Cost(self.check, 0.01, thread, 0.01, 1.0, 100.0)


class Pair:
    """Two ranks, whose threads run when ``turn`` says so."""

    def __init__(self, store: Any) -> None:
        self.judged: list[list[int]] = []
        self.boxes = [Mailbox(self._judge, budget=0.01, every=4) for _ in range(2)]
        self.trainings: list[Any] = [Stepping(), Stepping()]
        for rank, box in enumerate(self.boxes):
            box.rank, box.world, box._store = rank, 2, store
            box._thread = threading.Thread()  # is never started

    def _judge(self, posts: list[Post]) -> None:
        self.judged.append([post.rank for post in posts])

    def send(self, rank: int, check: int = 1) -> None:
        post = made_posts()[rank]
        post.check = post.step = check
        self.trainings[rank].check = check
        self.boxes[rank].send(self.trainings[rank], post)

    def turn(self, rank: int) -> None:
        self.boxes[rank]._once()


@pytest.fixture
def pair() -> Pair:
    return Pair(dist.HashStore())  # type: ignore[attr-defined]


def test_posts_of_all_ranks_are_judged_once(pair: Pair) -> None:
    pair.send(0)
    pair.turn(0)
    assert pair.judged == []
    pair.send(1)
    pair.turn(1)
    pair.turn(0)
    assert pair.judged == [[0, 1]]
    assert pair.boxes[0].notes == []


def test_rank_0_chooses_the_next_step_of_both(pair: Pair) -> None:
    for rank in (1, 0):
        pair.send(rank, FIRST_CHECKS)
        pair.turn(rank)
    pair.turn(1)
    assert pair.trainings[0].next_step == pair.trainings[1].next_step == 1 + 1 + 4


def test_rank_that_is_past_the_next_step_misses_the_check(pair: Pair) -> None:
    for rank in (1, 0):
        pair.send(rank, FIRST_CHECKS)
        pair.turn(rank)
    pair.trainings[1].steps = 50
    pair.turn(1)
    assert pair.trainings[1].next_step is None
    pair.send(0, FIRST_CHECKS + 1)
    pair.trainings[0].steps = 60
    pair.turn(0)
    assert pair.judged == [[0, 1]]
    assert pair.boxes[0].notes == ["check 6 was not judged: no post of rank 1"]
    pair.turn(1)
    assert pair.trainings[1].next_step == pair.trainings[0].next_step == 65


def test_check_without_a_post_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "LATEST", 0.0)
    pair.send(0)
    pair.turn(0)
    assert pair.judged == []
    assert pair.boxes[0].notes == ["check 1 was not judged: no post of rank 1"]


def test_rank_that_has_stopped_ends_the_checks_of_all(pair: Pair) -> None:
    pair.boxes[1].stop("RuntimeError: made up")
    pair.turn(1)
    pair.send(0)
    pair.boxes[0]._run()
    assert pair.boxes[0].failed
    assert pair.boxes[0].notes[0] == "guard stopped on rank 1: RuntimeError: made up"
    assert pair.judged == []


class DeadStore:
    """A store whose server has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the connection was closed")


@pytest.mark.parametrize("rank", [0, 1])
def test_dead_store_ends_the_thread_and_nothing_else(
    rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(DeadStore())
    pair.send(rank)
    pair.boxes[rank]._run()
    assert pair.boxes[rank].failed
    pair.send(rank)  # the training goes on
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == (1 if rank == 0 else 0)


def test_end_does_not_wait_for_a_rank_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "END", 0.1)
    pair = Pair(dist.HashStore())  # type: ignore[attr-defined]
    box = pair.boxes[0]
    box._thread = threading.Thread(target=box._run, daemon=True)
    box._thread.start()
    pair.send(0)
    box.close()
    assert not box._thread.is_alive()


def test_one_process_needs_no_store() -> None:
    judged: list[list[Post]] = []
    box = Mailbox(judged.append, budget=0.01, every=4)
    box.send(Stepping(), made_posts(ranks=1)[0])  # type: ignore[arg-type]
    box.close()
    assert len(judged) == 1
    assert time.thread_time() > box.seconds
