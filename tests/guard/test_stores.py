"""The store of a rendezvous, and how ranks find each other in it, also if they start again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from harness.rank.guard.posting.stores import Host, Store, connected, joined
from tests.guard.test_mailbox import Pair


class Old:
    """A store of torch before 2.15: it has no ``clone``."""

    def __init__(self, store: Any) -> None:
        self.underlying_store = store
        self.get, self.set, self.delete_key = store.get, store.set, store.delete_key


def test_a_key_is_there_or_not_and_nobody_waits() -> None:
    store = Store(HashStore())
    assert not store.check(["post"])
    assert not store.check(["post"])
    store.set("post", b"\0\xff bytes")
    assert store.check(["post"])
    assert store.get("post") == b"\0\xff bytes"
    store.delete_key("post")
    assert not store.check(["post"])


@pytest.mark.parametrize("old", [False, True])
def test_a_connection_is_another_one_to_the_same_server(old: bool) -> None:
    server: Any = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    store = connected(Old(server) if old else server, "ours")
    store.set("key", b"value")
    assert server.get("ours/key") == b"value"
    assert server.timeout.total_seconds() > 10  # that of the training is as it was


def test_a_store_without_connections_is_used_itself() -> None:
    inner = HashStore()
    connected(Old(inner), "ours").set("key", b"value")
    assert inner.get("ours/key") == b"value"


@pytest.fixture
def server() -> Any:
    """The server of a store, which outlives the ranks of a start."""
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def turns(number: int, act: Callable[[], None] = lambda: None) -> Callable[[float], bool]:
    """Let a rank look so often, and do something before each look; then the process ends."""
    looks = [number]

    def ends_in(seconds: float) -> bool:
        looks[0] -= 1
        act()
        return looks[0] < 0

    return ends_in


def test_an_answer_of_an_earlier_start_is_none(server: Any) -> None:
    def connection() -> Store:
        return connected(server, "guard")

    earlier = Host(connection(), 2)
    assert joined(connection(), 1, turns(2, earlier.answer))
    assert joined(connection(), 1, turns(3)) is None
    assert joined(connection(), 1, turns(0, earlier.answer)) is None  # it asks, and ends
    host = Host(connection(), 2)
    host.answer()  # before the rank has asked again
    store = joined(connection(), 1, turns(2, host.answer))
    assert store is not None
    store.set("post", b"value")
    assert host.store.check(["post"])
    assert not earlier.store.check(["post"])


def test_ranks_that_start_again_do_not_judge_posts_of_those_before(server: Any) -> None:
    """As after a change of membership: the store and the count of restarts are the same."""
    for _ in range(2):
        pair = Pair(server)
        for box in pair.boxes:
            box._store, box._kept_store = None, server
        first, second = pair.boxes
        first._connect()
        pair.exchange(1, 0)
        assert pair.judged == []
        vars(second._ending)["wait"] = turns(9, first._collect)
        second._connect()
        pair.exchange(1, 1)
        pair.turn(0)
        assert pair.judged == [[0, 1]]
