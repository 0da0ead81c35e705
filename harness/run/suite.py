"""Runs of several scenarios on this machine: some at once, while the next ones are prepared.

On a machine with GPUs each run leases its own, and the runs with the most ranks start first. On the
CPU they run one after another, unless ``jobs`` sets another number, and those that can share a
process with torch come next to each other.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.spec import Lane, Verdict
from harness.bugs.results import RunResult
from harness.rank.run_folder import RUN_FILE
from harness.releases import overlay, uv
from harness.run.run import make_overlay, prepared, run
from harness.run.run_config import RunConfig
from harness.run.server_pool import SERVERS_A_RUN, Pool
from harness.run.verdict_text import summary_row
from harness.system import machine
from harness.system.errors import HarnessError, Unsupported, UserError
from harness.system.files import read_json
from harness.system.machine import cache_folder
from harness.system.terminal import terminal
from harness.system.text import complaint

T = TypeVar("T")

Do = Callable[[int, threading.Event, Pool], T]
"""Runs the config with this index, with the servers of the pool, until the event is set."""

Make = Callable[[RunConfig], bool]
"""Makes the overlays of a config. False if there is nothing to prepare: nothing will run, or the
run will meet the same error and report it."""


@contextmanager
def started_ahead(
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
        overlay.builders() as builders,
        ThreadPoolExecutor(jobs, "run") as runners,
    ):
        futures = [builders.submit(make, config) for config in configs]

        def prepare_when_made(index: int, needed: Future[bool]) -> None:
            if not stop.is_set() and needed.result():
                preparing.submit(prepared, configs[index], pool)

        def look_ahead(index: int) -> None:
            if index < len(configs):
                futures[index].add_done_callback(partial(prepare_when_made, index))

        def run(index: int) -> T:
            futures[index].result()
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


@dataclass(frozen=True)
class Done:
    """One scenario of several that has finished."""

    result: RunResult
    seconds: float
    folder: Path | None
    """None if there was nothing to grade."""

    def row(self) -> list[str]:
        """Its row of the table, see ``verdict_text.summary``."""
        run = read_json(self.folder / RUN_FILE) if self.folder else None
        return summary_row(self.result, run, self.seconds)


@contextmanager
def started(
    configs: Sequence[RunConfig], console: Console | None = None
) -> Iterator[list[Future[tuple[str, Done]]]]:
    """Start runs, as many at once as ``jobs`` or the GPUs allow; yields their futures, in the order
    of the configs. Leaving the context ends running ones.

    A result is what the run printed and how it ended. A single run at a time prints to ``console``.
    """
    jobs, order = jobs_of(configs), list(range(len(configs)))
    if _gpus(configs):
        order.sort(key=lambda index: -_width(configs[index]))
    ordered = [configs[index] for index in order]

    def run_one(at: int, stop: threading.Event, pool: Pool) -> tuple[str, Done]:
        if console and jobs == 1:
            return "", _run_one(ordered[at], console, stop, pool)
        return run_in_block(ordered[at], stop, pool)

    pool = Pool(most=SERVERS_A_RUN * (jobs + 1))
    with started_ahead(ordered, run_one, _make_overlays, pool, jobs, ahead=1) as running:
        futures = dict(zip(order, running, strict=True))
        yield [futures[index] for index in range(len(configs))]


def _make_overlays(config: RunConfig) -> bool:
    """Make the overlays of a run, which meets errors again."""
    for variant in config.variants:
        with suppress(HarnessError):
            make_overlay(config, variant, cache_folder())
    return True


def jobs_of(configs: Sequence[RunConfig]) -> int:
    """How many run at once: ``jobs``, otherwise one on the CPU or as many as there are GPUs."""
    return configs[0].jobs or max(1, _gpus(configs) * configs[0].launch.sharing)


def _gpus(configs: Sequence[RunConfig]) -> int:
    """The GPUs of this machine that runs lease."""
    launch = configs[0].launch
    return 0 if launch.lane == Lane.CPU.value else len(machine.gpus())


def _width(config: RunConfig) -> int:
    """The most ranks of a run."""
    scenario = catalog.scenario(config.scenario)
    return max(scenario.ranks_of(variant) for variant in config.variants)


def run_in_block(
    config: RunConfig, stop: threading.Event | None = None, pool: Pool | None = None
) -> tuple[str, Done]:
    """Run one scenario; returns its output as one block, to be printed when it has ended."""
    block = io.StringIO()
    ending = _run_one(config, terminal(block), stop, pool)
    return block.getvalue(), ending


def _run_one(
    config: RunConfig,
    console: Console,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
) -> Done:
    started = time.monotonic()
    try:
        result, folder = run(config, console, stop, pool)
    except UserError:
        raise
    except Exception as error:  # a fault in one scenario must not end the others
        ending = not_run(config.scenario, error, console)
        return replace(ending, seconds=time.monotonic() - started)
    return Done(result, time.monotonic() - started, folder)


def not_run(scenario: str, error: Exception, console: Console) -> Done:
    """The ending of a scenario that an error kept from being graded; prints the error."""
    why = str(error) if isinstance(error, HarnessError) else complaint(error)
    console.print(f"{scenario}: {why}")
    unsupported = isinstance(error, Unsupported)
    verdict = Verdict.UNSUPPORTED if unsupported else Verdict.INCONCLUSIVE
    return Done(RunResult(scenario, verdict, (why,), ()), 0.0, None)
