"""The next run of a command, prepared while another one is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from harness.config import RunConfig
from harness.trial.run import prepared
from harness.trial.warm import Pool
from harness.upstream import pins

Prepare = Callable[[RunConfig], object]


@contextmanager
def ahead(pool: Pool) -> Iterator[Prepare]:
    """Give out a function that has a run's overlays made, and the processes that it will be forked
    from importing, in a thread of its own, one run after another.

    What hinders it, the run itself will meet again, and tell. Leaving the context gives up what is
    not done.
    """
    with ThreadPoolExecutor(1, "ahead") as worker:
        try:
            yield lambda config: worker.submit(prepared, config, pool)
        finally:
            worker.shutdown(wait=False, cancel_futures=True)
            pins.give_up()
