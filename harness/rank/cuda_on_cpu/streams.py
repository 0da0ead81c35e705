"""Streams and events of a CPU, on which there is nothing to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.rank.cuda_on_cpu.devices import Count
from harness.rank.replacement import Substitute

KIND = "streams and events"


class _Idle:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self, *_: Any) -> None:
        """Return at once, as all other methods that wait."""

    wait = wait_event = wait_stream = synchronize

    def query(self) -> bool:
        return True


class Event(_Idle):
    """A torch.cuda.Event that uses the host's clock, in milliseconds."""

    at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Stream(_Idle):
    """A torch.cuda.Stream that does nothing."""

    cuda_stream = priority = 0

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


def counted(base: type[_Idle]) -> Callable[[Count], type]:
    """A function that makes a class like this one, which counts its objects."""

    def make(count: Count) -> type:
        return type(base.__name__, (base,), {"__init__": lambda *_, **__: count(KIND)})

    return make


def stream(count: Count, original: Any, /, *_: Any, **__: Any) -> Stream:
    """Return a stream: there is always one."""
    count(KIND)
    return Stream()


def context(kind: str) -> Substitute:
    """Return a context, which also decorates functions, in which nothing is different."""

    def substitute(count: Count, original: Any, /, *_: Any, **__: Any) -> Any:
        count(kind)
        return _nothing()

    return substitute


@contextmanager
def _nothing() -> Iterator[None]:
    yield
