"""Finds cells: reads them from the cache, or runs the variant ``released`` and stores them."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness import catalog
from harness.api.spec import RELEASED, Lane
from harness.config.run_config import RunConfig
from harness.launch import lanes
from harness.launch.exits import Exit, read_json
from harness.launch.server_pool import Pool
from harness.overlays import overlay
from harness.runs.job import chosen_pins, stack_of
from harness.runs.records import RUN_FILE
from harness.runs.report import last_lines
from harness.runs.results import RunResult
from harness.runs.run import run
from harness.sweep import cell, cell_store
from harness.sweep.cell import STATUSES, Cell, Status
from harness.sweep.cell_store import inputs_of, lane_of
from harness.system import machine
from harness.system.errors import ExitCode, Fault, HarnessError, UserError
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import terminal

Failed = Callable[[int, HarnessError], object]
"""Is called with the index of a config and the error that kept its release from being tested."""


def room(config: RunConfig) -> int:
    """How many runs of a scenario this machine has room for at once."""
    ranks = catalog.scenario(config.scenario).ranks_of(RELEASED)
    if config.launch.nodes > 1:
        return 1
    return lanes.room(lane_of(config) or Lane.CPU, ranks, config.launch.threads)


def make_overlay(config: RunConfig, *, again: bool = False) -> bool:
    """Build the overlay of a cell; False if the cell is stored, or after an error, which the run
    will meet again and report."""
    cache = cache_folder()
    with suppress(HarnessError):
        stack = stack_of(config, RELEASED, cache)
        if again or cell_store.read(cache, inputs_of(config, stack)) is None:
            with overlay.borrowed(stack, (), cache):
                return True
    return False


def find(
    config: RunConfig,
    cache: Path,
    *,
    again: bool = False,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
    faults: bool = False,
) -> Cell:
    """The cell of the releases that ``config`` pins: stored, otherwise from a run now.

    With ``faults``, a fault of the machine is raised and yields no cell.
    """
    try:
        refuse_without_torch("a run")  # a stored cell would not help: it is of one torch
        inputs = inputs_of(config, stack_of(config, RELEASED, cache))
        stored = None if again else cell_store.read(cache, inputs)
        if stored:
            return replace(stored, stored=True)
        result, folder = run(config, terminal(io.StringIO()), stop, pool)
    except HarnessError as error:
        if isinstance(error, UserError) or (faults and isinstance(error, Fault)):
            raise
        return not_run(config, error)
    found = _cell_of(config, result, folder)
    if _repeatable(found, folder):
        cell_store.store(cache, inputs, found)
    return found


def not_run(config: RunConfig, error: HarnessError) -> Cell:
    """The cell of a release that could not be run."""
    unsupported = error.exit_code == ExitCode.UNSUPPORTED
    here = machine.facts()
    return Cell(
        config.scenario,
        chosen_pins(config, RELEASED),
        Status.UNSUPPORTED if unsupported else Status.INCONCLUSIVE,
        str(error),
        str(lane_of(config) or ""),
        here["python"],
        here["torch"],
        _today(),
    )


def _cell_of(config: RunConfig, result: RunResult, folder: Path) -> Cell:
    (trial,) = result.trials
    content = read_json(folder / RUN_FILE)
    status, reason = STATUSES[trial.outcome], trial.reason
    if trial.finding and trial.finding.another:
        status = Status.NOT_AFFECTED
        reason = f"{trial.finding.another} instead: {trial.finding.message}"
    unclear = status is Status.INCONCLUSIVE
    return Cell(
        config.scenario,
        content["trials"][RELEASED]["pins"],
        status,
        reason,
        content["lane"],
        content["machine"]["python"],
        content["machine"]["torch"],
        _today(),
        round(trial.seconds, 2),
        trial.finding.step if trial.finding and status is Status.AFFECTED else None,
        str(folder),
        tuple(last_lines(folder, trial)) if unclear else (),
    )


def _repeatable(found: Cell, folder: Path) -> bool:
    """Whether another run would give the same cell: not after a deadline or an interruption."""
    if found.status is Status.INCONCLUSIVE:
        ended = [Exit.read(file.parent) for file in folder.glob(f"{RELEASED}/**/exit.json")]
        return not any(e.timed_out or e.interrupted or e.survivors for e in ended)
    return found.status.certain


def environment(config: RunConfig) -> tuple[str, ...]:
    """The environment that a cell of this config would have here, see ``Cell.environment``."""
    here = machine.facts()
    return cell.environment(str(lane_of(config) or ""), here["python"], here["torch"])


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def exit_code(cells: Sequence[Cell]) -> int:
    """3 if a cell is inconclusive, otherwise 0."""
    unclear = any(found.status is Status.INCONCLUSIVE for found in cells)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED
