"""Several runs on this machine: some at once, while the next ones are prepared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from harness.config.run_config import RunConfig
from harness.launch.server_pool import Pool
from harness.overlays import overlay
from harness.runs.run import prepared
from harness.upstream import uv

T = TypeVar("T")

Do = Callable[[int, threading.Event, Pool], T]
"""Runs the config with this index, with the servers of the pool, until the event is set."""

Make = Callable[[RunConfig], bool]
"""Makes the overlays of a config. False if there is nothing to prepare: nothing will run, or the
run will meet the same error and report it."""


@contextmanager
def started(
    configs: Sequence[RunConfig], do: Do[T], make: Make, pool: Pool, jobs: int, ahead: int
) -> Iterator[list[Future[T]]]:
    """Start a run for each config, ``jobs`` at once; yields their futures, in the same order.

    Overlays are made in the background, in this order. The processes that the next ``ahead`` runs
    fork their ranks from import early. Leaving the context ends what still runs.
    """
    stop = threading.Event()
    with (
        pool,
        ThreadPoolExecutor(1, "ahead") as preparing,
        overlay.makers() as makers,
        ThreadPoolExecutor(jobs, "run") as runners,
    ):
        made = [makers.submit(make, config) for config in configs]

        def prepare_when_made(index: int, needed: Future[bool]) -> None:
            if not stop.is_set() and needed.result():
                preparing.submit(prepared, configs[index], pool)

        def look_ahead(index: int) -> None:
            if index < len(configs):
                made[index].add_done_callback(partial(prepare_when_made, index))

        def run(index: int) -> T:
            made[index].result()
            look_ahead(index + jobs + ahead - 1)
            return do(index, stop, pool)

        for index in range(jobs, jobs + ahead - 1):
            look_ahead(index)
        try:
            yield [runners.submit(run, index) for index in range(len(configs))]
        finally:
            runners.shutdown(wait=False, cancel_futures=True)  # before a run ends: none may begin
            stop.set()
            uv.give_up()
            preparing.shutdown(wait=False, cancel_futures=True)
