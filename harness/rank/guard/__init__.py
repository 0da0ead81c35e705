"""guard: watches a real training, in each of its ranks, for about one percent of its time.

``start`` subscribes to what torch does (``..events``). In checked steps each rank samples its
weights and gradients (``training``), a thread posts the samples through the store of the rendezvous
(``mailbox``), and rank 0 judges them (``judge``) and tells each fault once (``account``).

The package needs the standard library and torch, and runs in the user's interpreter, from Python
3.9 on: it is copied, beside ``events``, into a folder on that interpreter's path.
"""

from __future__ import annotations

import sys
from typing import Any

from .settings import Settings

_guards: list[Any] = []


def start(settings: Settings | None = None) -> None:
    """Watch what this process trains from now on. Nothing happens at a second call, and a fault of
    guard itself is one line on stderr."""
    if _guards:
        return
    try:
        from .guard import Guard

        guard = Guard(settings or Settings.of_environment())
        try:
            guard.install()
        except Exception as error:
            guard.fence.error = repr(error)  # what it has subscribed to does nothing then
            raise
        _guards.append(guard)
    except Exception as error:
        sys.stderr.write(f"guard: this process is not watched: {error!r}\n")
