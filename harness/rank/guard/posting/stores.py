"""A connection to the store of the ranks' rendezvous, by the calls that each release of torch has.

A call of a store locks its connection, so guard's thread must not use that of the training.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

TIMEOUT = datetime.timedelta(seconds=10)

PART = 4 * 2**20
"""Bytes of a value: a TCPStore with libuv ends a connection that sends more than 8 MiB."""
MOST_PARTS = 1000
"""Parts of a value: more are a damaged count."""
AT_ONCE = 64
"""Values that one call gets."""


class Store:
    """What guard needs of a store: no call waits for a key."""

    def __init__(self, store: Any) -> None:
        self.get, self.set, self.delete_key = store.get, store.set, store.delete_key
        self._store = store
        has_more = getattr(store, "has_extended_api", None)  # one call for several values
        self._gets_many = bool(has_more and has_more())

    def under(self, prefix: str) -> Store:
        """The same store with other keys."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        return Store(PrefixStore(prefix, self._store))

    def put(self, name: str, value: bytes) -> int:
        """Set a value of any size, for ``take``; returns the number of its parts."""
        parts = [value[at : at + PART] for at in range(0, len(value), PART)] or [b""]
        for number in range(1, len(parts)):
            self.set(_part(name, number), parts[number])
        self.set(name, len(parts).to_bytes(4, "big") + parts[0])  # the last one: all are there
        return len(parts)

    def take(self, names: list[str]) -> list[bytes]:
        """The values that ``put`` has set."""
        values = []
        for at in range(0, len(names), AT_ONCE):
            some = names[at : at + AT_ONCE]
            firsts = self._store.multi_get(some) if self._gets_many else map(self.get, some)
            for name, value in zip(some, firsts):
                count = min(int.from_bytes(value[:4], "big"), MOST_PARTS)
                others = [_part(name, number) for number in range(1, count)]
                if others and not self.check(others):
                    others = []  # it is damaged: no call may wait for a key
                values.append(b"".join([value[4:], *map(self.get, others)]))
        return values

    def remove(self, name: str, parts: int) -> None:
        """Delete a value that ``put`` has set."""
        for key in (name, *(_part(name, number) for number in range(1, parts))):
            self.delete_key(key)

    def present(self, names: list[str]) -> list[str]:
        """Those of these keys that the store has, in few calls if almost all are there."""
        if not names or self.check(names):
            return names
        if len(names) == 1:
            return []
        middle = len(names) // 2
        return self.present(names[:middle]) + self.present(names[middle:])

    def check(self, names: list[str]) -> bool:
        """Whether the store has all these keys."""
        return bool(self._store.check(names))


def _part(name: str, number: int) -> str:
    return f"{name}/part {number}"


def connected(store: Any, prefix: str) -> Store:
    """A store of its own, with the server of another one. Raises an error if there is none."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    if hasattr(store, "clone"):  # since torch 2.15
        store = store.clone()
        store.set_timeout(TIMEOUT)
        return Store(PrefixStore(prefix, store))
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if isinstance(store, TCPStore):  # others have no connection
        store = TCPStore(store.host, store.port, None, False, TIMEOUT, wait_for_workers=False)
    return Store(PrefixStore(prefix, store))


QUESTION, ANSWER = "rank {}", "{} is answered"
SOONEST, RAREST = 0.02, 30.0
"""How often a rank looks for the answer, in seconds: less and less often."""


class Host:
    """Rank 0, which answers the others, so that all ranks of one start find each other in a store
    that may have posts of an earlier start.

    Torchrun gives ranks that it starts again the same store, and the same count of restarts if
    nodes have come or gone. So rank 0 chooses a name, under which all posts of this start are. Each
    other rank asks for it with a word of its own; rank 0 answers with that word and the name. An
    answer to another word is of an earlier start.
    """

    def __init__(self, store: Store, world: int) -> None:
        self._name = uuid.uuid4().hex
        self.store = store.under(self._name)
        """The store for the posts of this start."""
        self._asked, self._questions = store, [QUESTION.format(rank) for rank in range(1, world)]
        self._answered: dict[str, bytes] = {}

    def answer(self) -> None:
        """Answer the questions that are new; some may be of an earlier start."""
        names = self._asked.present(self._questions)
        for name, word in zip(names, self._asked.take(names)):
            if self._answered.get(name) != word:
                self._asked.put(ANSWER.format(name), word + self._name.encode())
                self._answered[name] = word


def joined(store: Store, rank: int, ends_in: Callable[[float], bool]) -> Store | None:
    """The store for the posts of this start, when rank 0 has answered. ``ends_in`` waits for some
    seconds, and returns whether this process ends meanwhile: then it is None."""
    word, name = uuid.uuid4().hex.encode(), QUESTION.format(rank)
    store.put(name, word)
    pause = SOONEST
    while not ends_in(pause):
        if store.check([ANSWER.format(name)]):
            (text,) = store.take([ANSWER.format(name)])
            if text.startswith(word):
                return store.under(text[len(word) :].decode())
        pause = min(RAREST, 1.2 * pause)
    return None
