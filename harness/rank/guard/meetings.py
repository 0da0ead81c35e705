"""How the ranks of one start find each other in a store that may have posts of an earlier start.

Torchrun gives ranks that it starts again the same store, and the same count of restarts if nodes
have come or gone. So rank 0 chooses a name, under which all posts of this start are. Each other
rank asks for it with a word of its own; rank 0 answers with that word and the name. An answer to
another word is of an earlier start.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from .stores import Store

SOONEST, RAREST = 0.02, 30.0
"""How often a rank looks for the answer, in seconds: less and less often."""


class Host:
    """Rank 0, which answers the others."""

    def __init__(self, store: Store, world: int) -> None:
        self._name = uuid.uuid4().hex
        self.store = store.under(self._name)
        """The store for the posts of this start."""
        self._asked, self._questions = store, [_question(rank) for rank in range(1, world)]
        self._answered: dict[str, bytes] = {}

    def answer(self) -> None:
        """Answer the questions that are new; some may be of an earlier start."""
        names = self._asked.present(self._questions)
        for name, word in zip(names, self._asked.take(names)):
            if self._answered.get(name) != word:
                self._asked.put(_answer(name), word + self._name.encode())
                self._answered[name] = word


def joined(store: Store, rank: int, ends_in: Callable[[float], bool]) -> Store | None:
    """The store for the posts of this start, when rank 0 has answered. ``ends_in`` waits for some
    seconds, and returns whether this process ends meanwhile: then it is None."""
    word, name = uuid.uuid4().hex.encode(), _question(rank)
    store.put(name, word)
    pause = SOONEST
    while not ends_in(pause):
        if store.check([_answer(name)]):
            (text,) = store.take([_answer(name)])
            if text.startswith(word):
                return store.under(text[len(word) :].decode())
        pause = min(RAREST, 1.2 * pause)
    return None


def _question(rank: int) -> str:
    return f"rank {rank}"


def _answer(question: str) -> str:
    return f"{question} is answered"
