"""Streams and events of a CPU, on which there is nothing to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.rank.cuda_on_cpu.devices import Count
from harness.rank.replacement import Substitute


class Event:
    """A torch.cuda.Event that uses the host's clock, in milliseconds."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def wait(self, *_: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Stream:
    """A torch.cuda.Stream that does nothing."""

    cuda_stream = priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def wait_event(self, _: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


STREAMS = "streams and events"


def counted(kind: type) -> Callable[[Count], type]:
    """A function that makes a class like this one, which counts its objects."""

    def make(count: Count) -> type:
        def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
            count(STREAMS)
            kind.__init__(self, *arguments, **keywords)  # type: ignore[misc]

        return type(kind.__name__, (kind,), {"__init__": __init__})

    return make


def stream(count: Count, original: Any, /, *_: Any, **__: Any) -> Stream:
    """Return a stream: there is always one."""
    count(STREAMS)
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
