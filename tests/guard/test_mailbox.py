"""Mailboxes of two ranks with one store: what is posted is judged, and nobody waits for anybody."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from harness.rank.guard.posting.budget import FIRST_CHECKS, Cost
from harness.rank.guard.posting.posts import Post
from harness.rank.guard.posting.stores import AT_ONCE, PART, Store
from harness.rank.guard.reporting import mailbox
from harness.rank.guard.reporting.mailbox import Mailbox
from harness.rank.guard.trainings.trained_model import TrainedModel
from harness.rank.guard.trainings.training import Turn
from tests.guard.judging import made_posts


@dataclass
class Stepping:
    """A training that has made some steps."""

    steps: int = 1
    turn: Turn = field(default_factory=Turn)
    model: TrainedModel = field(default_factory=TrainedModel)

    def __post_init__(self) -> None:
        self.turn.next_step, self.turn.check = None, 1

    @property
    def costs(self) -> Stepping:
        return self

    def total(self, checks: int, thread: float) -> Cost:
        return Cost(checks, 0.01, thread, 0.01, 1.0, 100.0)


class Pair:
    """Two ranks, or more, whose threads run when ``turn`` says so."""

    def __init__(self, store: Any, ranks: int = 2) -> None:
        self.judged: list[list[int]] = []
        self.made = made_posts(ranks=ranks)
        self.posts: list[Post] = []
        """Those of the last check that was judged."""
        self.boxes = [Mailbox(self._judge, budget=0.01, every=4) for _ in range(ranks)]
        self.trainings: list[Any] = [Stepping() for _ in range(ranks)]
        for rank, box in enumerate(self.boxes):
            box.rank, box.world = rank, ranks
            box._store = Store(store)
            box._thread = threading.Thread()  # is never started

    def _judge(self, posts: list[Post]) -> None:
        self.judged.append([post.rank for post in posts])
        self.posts = posts

    def send(self, rank: int, check: int = 1) -> None:
        made = self.made[rank]
        parameters, run = replace(made.parameters), replace(made.run)
        post = replace(made, parameters=parameters, run=run, tensors=dict(made.tensors))
        post.check = post.step = check
        training = self.trainings[rank]
        training.turn.check = check
        if training.model.is_described:
            post.parameters.described = []
            del post.tensors["first_bits"]
        training.model.is_described = True
        self.boxes[rank].send(self.trainings[rank], post)

    def turn(self, rank: int) -> None:
        self.boxes[rank]._once()

    def exchange(self, check: int, *ranks: int) -> None:
        """Some ranks post, one after the other: rank 0 judges a check as the last one."""
        for rank in ranks or (1, 0):
            self.send(rank, check)
            self.turn(rank)


@pytest.fixture
def pair() -> Pair:
    return Pair(dist.HashStore())  # type: ignore[attr-defined]


@pytest.mark.parametrize(("every", "next_step", "left_out"), [(1, 9, 3), (2, 9, 1), (10, 15, 0)])
def test_checks_that_every_asks_for_and_that_come_too_soon_are_counted(
    pair: Pair, every: int, next_step: int, left_out: int
) -> None:
    pair.boxes[0]._every = every
    for training in pair.trainings:
        training.steps = FIRST_CHECKS
    pair.exchange(FIRST_CHECKS)
    assert pair.trainings[0].turn.next_step == next_step
    assert pair.boxes[0].left_out == 0  # the training may end with this step
    pair.trainings[0].steps = next_step
    assert pair.boxes[0].left_out == left_out


@pytest.mark.parametrize(("optimizers", "steps"), [(1, 10), (2, 20)])
def test_optimizers_of_a_process_share_the_budget(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, optimizers: int, steps: int
) -> None:
    monkeypatch.setattr(Stepping, "total", lambda *_: Cost(9, 0.0, 0.0, 0.1, 1.0, 1e3))
    pair.boxes[0]._every = 0
    for rank in (1, 0):
        post = made_posts()[rank]
        post.check, post.run.optimizers = FIRST_CHECKS, optimizers
        pair.boxes[rank].send(pair.trainings[rank], post)
        pair.turn(rank)
    assert pair.trainings[0].turn.next_step == 1 + 1 + steps


def test_rank_that_is_past_the_next_step_misses_the_check(pair: Pair) -> None:
    pair.exchange(FIRST_CHECKS)
    pair.trainings[1].steps = 50
    pair.turn(1)
    assert pair.trainings[1].turn.next_step is None
    pair.trainings[0].steps = 60
    pair.exchange(FIRST_CHECKS + 1, 0)
    assert pair.judged == [[0, 1]]
    assert pair.boxes[0].notes == ["check 6 was not judged: no post of rank 1"]
    pair.turn(1)
    assert pair.trainings[1].turn.next_step == pair.trainings[0].turn.next_step == 64


def test_post_that_is_damaged_is_no_post_and_the_next_one_describes_again(pair: Pair) -> None:
    store = pair.boxes[0]._store
    for check in range(1, FIRST_CHECKS + 1):
        pair.exchange(check, 1)
        if check == 1:
            store.set(mailbox._name(0, check, 1), b"made up")
        pair.exchange(check, 0)
    assert pair.boxes[0].notes == [
        "check 1: the post of rank 1 cannot be read",
        "check 1 was not judged: no post of rank 1",
    ]
    assert pair.judged == [[0, 1]] * (FIRST_CHECKS - 1)
    pair.turn(1)
    assert not pair.trainings[1].model.is_described
    pair.exchange(FIRST_CHECKS + 1)
    assert pair.posts[1].parameters.described
    assert "first_bits" in pair.posts[1].tensors


def test_description_of_a_check_that_was_not_judged_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trio = Pair(dist.HashStore(), ranks=3)  # type: ignore[attr-defined]
    monkeypatch.setattr(mailbox, "LATEST", 0.0)
    trio.exchange(1, 1, 0)
    assert trio.boxes[0].notes == ["check 1 was not judged: no post of rank 2"]
    trio.exchange(1, 2)  # the other post comes too late
    trio.exchange(2, 1, 0)
    trio.exchange(2, 2)
    monkeypatch.setattr(mailbox, "LATEST", 60.0)
    trio.exchange(3, 1, 2, 0)
    assert trio.judged == [[0, 1, 2]]
    assert [len(post.parameters.described) for post in trio.posts[:2]] == [2, 2]


def test_posts_are_deleted_when_rank_0_has_read_them(pair: Pair) -> None:
    for check in (FIRST_CHECKS - 1, FIRST_CHECKS):
        pair.exchange(check)
    pair.turn(1)
    store = pair.boxes[0]._store
    assert not any(store.check([mailbox._name(0, check, 1)]) for check in range(FIRST_CHECKS + 1))


def test_checks_are_judged_in_order_if_posts_come_while_rank_0_looks_for_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, steps = pair.boxes[0]._store, []
    look, judge = store.check, pair.boxes[0]._judge

    def look_and_let_them_come(names: list[str]) -> bool:
        is_there = look(names)
        if not is_there:
            monkeypatch.setattr(store, "check", look)
            pair.exchange(1, 1)
            pair.exchange(2, 1)
        return is_there

    def judge_and_note(posts: list[Post]) -> None:
        steps.append(posts[0].step)
        judge(posts)

    monkeypatch.setattr(pair.boxes[0], "_judge", judge_and_note)
    pair.exchange(1, 0)
    monkeypatch.setattr(store, "check", look_and_let_them_come)
    pair.send(0, 2)
    for _ in range(2):  # both are open: the first look is in vain
        pair.turn(0)
    assert steps == [1, 2]


def test_rank_that_posts_twice_is_judged_once(pair: Pair) -> None:
    pair.send(1)
    pair.send(1)
    pair.turn(1)
    pair.turn(1)
    pair.exchange(1, 0)
    assert pair.judged == [[0, 1]]


@pytest.mark.parametrize(("absent", "calls"), [(None, 4 + 4), (77, 39)])
def test_rank_0_reads_many_posts_or_finds_who_is_absent_in_few_calls(
    absent: int | None, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call asks whether all are there, and some are for the parameters."""
    monkeypatch.setattr(mailbox, "LATEST", 0.0)
    store, ranks = Mock(wraps=dist.HashStore()), 4 * AT_ONCE  # type: ignore[attr-defined]
    many = Pair(store, ranks)
    many.exchange(1, *sorted(set(range(1, ranks)) - {absent}))
    many.send(0)
    store.reset_mock()
    many.turn(0)
    assert many.judged == ([list(range(ranks))] if absent is None else [])
    note = f"check 1 was not judged: no post of rank {absent}"
    assert many.boxes[0].notes == ([] if absent is None else [note])
    assert len(store.mock_calls) <= calls


def test_post_larger_than_a_value_of_a_tcp_store() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined]
    pair = Pair(server)
    post = made_posts()[1]
    post.check = post.step = FIRST_CHECKS
    post.tensors["losses"] = torch.arange(float(5 * PART // 4 // 2 * 2))  # 2.5 parts of 8 MiB
    post.tensors["losses"] = torch.cat([post.tensors["losses"]] * 2)
    assert 4 * len(post.tensors["losses"]) > 8 * 2**20
    pair.boxes[1].send(pair.trainings[1], post)
    pair.turn(1)
    name = f"{mailbox._name(0, FIRST_CHECKS, 1)}/part 1"
    pair.send(0, FIRST_CHECKS)
    assert Store(server).check([name])
    pair.turn(0)
    assert pair.judged == [[0, 1]]
    assert torch.equal(pair.posts[1].tensors["losses"], post.tensors["losses"])
    pair.turn(1)
    assert not Store(server).check([name])


def test_end_does_not_wait_for_a_rank_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "END", 0.1)
    pair = Pair(dist.HashStore())  # type: ignore[attr-defined]
    box = pair.boxes[0]
    box._thread = threading.Thread(target=box._run, daemon=True)
    box._thread.start()
    pair.send(0)
    box.close()
    assert not box._thread.is_alive()


def test_memory_into_which_a_gpu_copies_is_let_go_when_the_copies_are_complete(pair: Pair) -> None:
    """A worker that was forked later freed it, and was ended by CUDA: DiT's second epoch."""
    post, training, event = pair.made[0], pair.trainings[0], Mock()
    pinned = dict(post.tensors)

    pair.boxes[0]._post(training, post, pinned, event)

    event.synchronize.assert_called_once_with()
    places = {tensor.data_ptr() for tensor in pinned.values() if tensor.numel()}
    assert places.isdisjoint(tensor.data_ptr() for tensor in post.tensors.values())
    assert all(torch.equal(post.tensors[name], tensor) for name, tensor in pinned.items())
