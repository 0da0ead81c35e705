"""The store of a rendezvous, by the calls that older releases of torch have."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from harness.rank.guard.posting.stores import Store, connected


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
