"""Several scenarios in one command, with one table at the end.

On a machine with GPUs each run leases its own, and the runs with the most ranks start first. On the
CPU they run one after another, unless ``jobs`` sets another number, and those that can share a
process with torch come next to each other.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from rich.console import Console

from harness import catalog
from harness.api.spec import Lane, Verdict
from harness.config.run_config import SLURM, RunConfig
from harness.launch.exits import read_json
from harness.launch.server_pool import SERVERS_A_RUN, Pool
from harness.launch.servers import TORCH_IMPORTS
from harness.runs.job import locked
from harness.runs.records import RUN_FILE
from harness.runs.report import summary, summary_row
from harness.runs.results import RunResult
from harness.runs.run import run
from harness.sweep.prefetch import ahead, overlays_ahead
from harness.system import machine
from harness.system.errors import ExitCode, HarnessError, Unsupported, UserError
from harness.system.files import writing
from harness.system.installation import refuse_without_torch
from harness.system.terminal import count, terminal
from harness.system.text import complaint

NOTES = "HARNESS_EXIT_CODES"
"""The environment variable with the folder where each job of a command writes its exit code: a
multirun's launcher may run its jobs in other processes."""


@dataclass(frozen=True)
class Done:
    """One scenario of several that has finished."""

    result: RunResult
    seconds: float
    folder: Path | None
    """None if there was nothing to grade."""

    def row(self) -> list[str]:
        """Its row of the table, see ``report.summary``."""
        run = read_json(self.folder / RUN_FILE) if self.folder else None
        return summary_row(self.result, run, self.seconds)


def run_and_note(configs: list[RunConfig]) -> None:
    """Run the scenarios that one command line selects, and write the exit code for the command."""
    refuse_without_torch("a run")  # once, and not in the table of several
    if configs[0].on.where == SLURM and len(configs) == 1:
        code = next(side_by_side(configs, terminal())).result.exit_code
    elif len(configs) == 1:
        code = run(configs[0])[0].exit_code
    else:
        code = run_all(configs)
    (Path(os.environ[NOTES]) / uuid.uuid4().hex).write_text(str(code))


@contextmanager
def noted_exit_codes(shared: bool = False) -> Iterator[list[int]]:
    """Collect the exit codes that jobs write meanwhile; the list is filled on leaving.

    With ``shared`` they are in the cache, for a launcher whose jobs run on other machines.
    """
    codes: list[int] = []
    place = machine.own_folder(machine.cache_folder(), "exit-codes") if shared else None
    if place:
        with writing(place, "HARNESS_CACHE"):
            place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        os.environ[NOTES] = folder
        try:
            yield codes
            codes += [int(note.read_text()) for note in Path(folder).iterdir()]
        finally:
            del os.environ[NOTES]


def run_all(configs: Sequence[RunConfig]) -> int:
    """Run several scenarios, print each as one block and then the table; returns the exit code.

    It is 0 if every scenario that this machine supports has the expected verdict. With ``strict``
    an unsupported scenario fails.
    """
    console = terminal()
    started = time.monotonic()
    done = {d.result.scenario: d for d in side_by_side(configs, console)}
    console.print()
    console.print(summary([done[c.scenario].row() for c in configs]))
    console.print(f"{count(len(done), 'scenario')} in {time.monotonic() - started:.0f} s")
    codes = [d.result.exit_code for d in done.values()]
    if not configs[0].strict:
        codes = [code for code in codes if code != ExitCode.UNSUPPORTED]
    return ExitCode.worst(codes)


def side_by_side(configs: Sequence[RunConfig], console: Console) -> Generator[Done, None, None]:
    """Run as many at once as ``jobs`` or the GPUs allow; yields the scenarios as they end."""
    if configs[0].on.where == SLURM:
        from harness.sweep import cluster

        for _, done in cluster.run_all(configs, console):
            yield done
        return
    jobs = _jobs(configs)
    if jobs == 1:
        yield from _one_by_one(_in_order(configs), console)
        return
    with started(configs) as running:
        for future in as_completed(running.values()):
            block, done = future.result()
            console.print(block, end="")
            yield done


def _one_by_one(configs: Sequence[RunConfig], console: Console) -> Iterator[Done]:
    """Run one after another, and prepare the next one meanwhile."""
    with Pool() as pool, ahead(pool) as prepare, overlays_ahead(configs):
        for config, following in zip_longest(configs, configs[1:]):
            if following:
                prepare(following)
            yield _run_one(config, console, threading.Event(), pool)


@contextmanager
def started(configs: Sequence[RunConfig]) -> Iterator[dict[str, Future[tuple[str, Done]]]]:
    """Start runs of several scenarios; yields a future for each, by scenario.

    A future's result is the output of the run and how it ended. As many run at once as ``jobs`` or
    the GPUs allow. Leaving the context ends running ones.
    """
    stop, jobs, ordered = threading.Event(), _jobs(configs), _in_order(configs)
    with (
        Pool(most=SERVERS_A_RUN * (jobs + 1)) as pool,
        ahead(pool) as prepare,
        overlays_ahead(ordered),
        ThreadPoolExecutor(jobs) as runners,
    ):

        def run_(index: int) -> tuple[str, Done]:
            for following in ordered[index + jobs : index + jobs + 1]:
                prepare(following)
            return run_in_block(ordered[index], stop, pool)

        try:
            yield {c.scenario: runners.submit(run_, index) for index, c in enumerate(ordered)}
        finally:
            stop.set()
            runners.shutdown(cancel_futures=True)


def _jobs(configs: Sequence[RunConfig]) -> int:
    """How many run at once: ``jobs``, otherwise one on the CPU or as many as there are GPUs."""
    return configs[0].jobs or max(1, _gpus(configs))


def _gpus(configs: Sequence[RunConfig]) -> int:
    """The GPUs of this machine that runs lease."""
    launch = configs[0].launch
    return 0 if launch.lane == Lane.CPU.value or launch.nodes > 1 else len(machine.gpus())


def _in_order(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """The runs in the order to start them."""
    if _gpus(configs):
        return sorted(configs, key=_width, reverse=True)
    return sorted(configs, key=_beside_torch)


def _width(config: RunConfig) -> int:
    if config.params is None:
        return 0  # a broken scenario: nothing runs
    scenario = catalog.scenario(config.scenario)
    return max(scenario.ranks_of(variant) for variant in config.variants)


def _beside_torch(config: RunConfig) -> list[list[tuple[str, str]]]:
    """What torch imports from the overlays of a run. Overlays that have the same share a process
    that has imported torch."""
    if config.params is None:
        return []
    versions = (locked(config, variant) for variant in config.variants)
    return sorted(
        [(name, version) for name, version in sorted(found.items()) if name in TORCH_IMPORTS]
        for found in versions
    )


def run_in_block(
    config: RunConfig, stop: threading.Event | None = None, pool: Pool | None = None
) -> tuple[str, Done]:
    """Run one scenario; returns its output as one block, to be printed when it has ended."""
    block = io.StringIO()
    done = _run_one(config, terminal(block), stop, pool)
    return block.getvalue(), done


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
        done = not_run(config.scenario, error, console)
        return replace(done, seconds=time.monotonic() - started)
    return Done(result, time.monotonic() - started, folder)


def not_run(scenario: str, error: Exception, console: Console) -> Done:
    """How a scenario ended that an error kept from being graded; prints the error."""
    why = str(error) if isinstance(error, HarnessError) else complaint(error)
    console.print(f"{scenario}: {why}")
    unsupported = isinstance(error, Unsupported)
    verdict = Verdict.UNSUPPORTED if unsupported else Verdict.INCONCLUSIVE
    return Done(RunResult(scenario, verdict, (why,), ()), 0.0, None)
