"""Ranks that start again find each other in a store with what the ranks before them have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from harness.rank.guard.posting.stores import Host, Store, connected, joined
from tests.guard.test_mailbox import Pair


class Server:
    """The server of a store, which outlives the ranks of a start."""

    def __init__(self) -> None:
        self.store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, None, True, wait_for_workers=False
        )

    def connection(self) -> Store:
        return connected(self.store, "guard")


@pytest.fixture
def server() -> Server:
    return Server()


def turns(number: int, act: Callable[[], None] = lambda: None) -> Callable[[float], bool]:
    """Let a rank look so often, and do something before each look; then the process ends."""
    looks = [number]

    def ends_in(seconds: float) -> bool:
        looks[0] -= 1
        act()
        return looks[0] < 0

    return ends_in


def test_an_answer_of_an_earlier_start_is_none(server: Server) -> None:
    earlier = Host(server.connection(), 2)
    assert joined(server.connection(), 1, turns(2, earlier.answer))
    assert joined(server.connection(), 1, turns(3)) is None
    assert joined(server.connection(), 1, turns(0, earlier.answer)) is None  # it asks, and ends
    host = Host(server.connection(), 2)
    host.answer()  # before the rank has asked again
    store = joined(server.connection(), 1, turns(2, host.answer))
    assert store is not None
    store.set("post", b"value")
    assert host.store.check(["post"])
    assert not earlier.store.check(["post"])


def test_ranks_that_start_again_do_not_judge_posts_of_those_before(server: Server) -> None:
    """As after a change of membership: the store and the count of restarts are the same."""
    for _ in range(2):
        pair = Pair(server.store)
        for box in pair.boxes:
            box._store, box._kept_store = None, server.store
        first, second = pair.boxes
        first._connect()
        pair.send(0)
        pair.turn(0)
        assert pair.judged == []
        vars(second._ending)["wait"] = turns(9, first._collect)
        second._connect()
        pair.send(1)
        pair.turn(1)
        pair.turn(0)
        assert pair.judged == [[0, 1]]
