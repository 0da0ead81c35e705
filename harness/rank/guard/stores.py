"""A connection to the store of the ranks' rendezvous, by the calls that each release of torch has.

A call of a store locks its connection, so guard's thread must not use that of the training.
"""

from __future__ import annotations

import datetime
from typing import Any

TIMEOUT = datetime.timedelta(seconds=10)
ABSENT = "distributed-bugs-guard: absent"


class Store:
    """What guard needs of a store: no call waits for a key."""

    def __init__(self, store: Any) -> None:
        self.get, self.set, self.delete_key = store.get, store.set, store.delete_key
        self._store = store

    def check(self, names: list[str]) -> bool:
        """Whether the store has all these keys."""
        if hasattr(self._store, "check"):
            return bool(self._store.check(names))
        # Torch 2.1: an absent key keeps absent, as it has not the expected value.
        return all(self._store.compare_set(n, ABSENT, ABSENT) != ABSENT.encode() for n in names)


def connected(store: Any, prefix: str) -> Store:
    """A store of its own, with the server of another one. Raises an error if there is none."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    if hasattr(store, "clone"):
        store = store.clone()
        store.set_timeout(TIMEOUT)
    else:
        store = _reconnected(store)
    return Store(PrefixStore(prefix, store))


def _reconnected(store: Any) -> Any:
    """What ``clone`` does where torch has none. Other stores than TCPStore have no connection."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return store
    return TCPStore(store.host, store.port, None, False, TIMEOUT, wait_for_workers=False)
