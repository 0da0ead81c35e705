"""Finds cells: reads them from the cache, or runs the variant ``released`` and stores them.

Each is stored under all that its status depends on: the overlay, the scenario's parameters, the
lane, torch, and our own code.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness.bugs import catalog, pins
from harness.bugs.api.spec import RELEASED, Lane, Outcome
from harness.bugs.results import Result, RunResult, Status, platform_of
from harness.rank.exits import EXIT_FILE
from harness.releases import overlay
from harness.run import job
from harness.run.job import chosen_pins, stack_of
from harness.run.run import run
from harness.run.run_config import SLURM, RunConfig
from harness.run.server_pool import Pool
from harness.run.verdict_text import last_lines
from harness.system import machine, store
from harness.system.code import digest
from harness.system.errors import ExitCode, HarnessError, Unsupported
from harness.system.files import read_json
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import terminal


def inputs_of(config: RunConfig, stack: pins.Stack) -> dict[str, Any]:
    """All that the status of a cell depends on, as plain JSON values."""
    facts = machine.facts()
    return {
        "scenario": config.scenario,
        "pins": dict(stack.pins),
        "overlay": overlay.key(stack),
        "params": asdict(config.params),
        "seed": config.seed,
        "threads": config.launch.threads,
        "lane": str(lane_of(config)),
        "python": facts["python"],
        "torch": facts["torch"],
        "code": code(config.scenario),
    }


def lane_of(config: RunConfig) -> Lane | None:
    """The lane that a run of this config takes here, or on a node; None if none is supported."""
    scenario = catalog.scenario(config.scenario)
    if config.on.where == SLURM:  # this machine may have no GPU
        lane = Lane(config.launch.lane)
        return lane if lane in scenario.lanes else None
    try:
        return job.choose_lane(scenario, scenario.ranks_of(RELEASED), config.launch.lane)
    except Unsupported:
        return None


@cache
def code(scenario: str) -> str:
    """A digest of our own code that the status of a scenario's cells depends on."""
    ours = (
        "harness.rank.scenario",
        "harness.run.launch",
        "harness.run.grade",
        "harness.rank.forkserver",
    )
    return digest(catalog.places()[scenario], *ours)


def read_stored(cache: Path, inputs: Mapping[str, Any]) -> Result | None:
    """The stored cell of exactly these inputs; None if there is no valid one."""
    return store.read(Result.from_json, cache, inputs)


Failed = Callable[[int, HarnessError], object]
"""Is called with the index of a config and the error that kept its release from being tested."""


def room(config: RunConfig) -> int:
    """How many runs of a scenario this machine has room for at once."""
    ranks = catalog.scenario(config.scenario).ranks_of(RELEASED)
    return job.room(lane_of(config) or Lane.CPU, ranks, config.launch)


def make_overlay(config: RunConfig, *, again: bool = False) -> bool:
    """Build the overlay of a cell. False if it needs none, if the cell is stored, or after an
    error, which the run will meet again and report."""
    if config.installed:
        return False
    cache = cache_folder()
    with suppress(HarnessError):
        stack = stack_of(config, RELEASED, cache)
        if again or read_stored(cache, inputs_of(config, stack)) is None:
            with overlay.borrow(stack, (), cache):
                return True
    return False


def stored(config: RunConfig) -> Result | None:
    """The stored cell of a config; None if there is none, or after an error, which the run will
    meet again."""
    cache = cache_folder()
    with suppress(HarnessError):
        cell = read_stored(cache, inputs_of(config, stack_of(config, RELEASED, cache)))
        return replace(cell, stored=True) if cell else None
    return None


def find(
    config: RunConfig,
    cache: Path,
    *,
    again: bool = False,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
) -> Result | HarnessError:
    """The cell of the releases that ``config`` pins, stored, otherwise from a run now; or why there
    is no run to grade. Raises Fault if the cell cannot be stored: the next one cannot be, either.
    """
    inputs = None
    try:
        if config.installed:  # may change without a new version, so nothing is stored
            overlay.installed(config.installed, catalog.scenario(config.scenario).pins)
        else:
            refuse_without_torch("a run")  # a stored cell would not help: it is of one torch
            inputs = inputs_of(config, stack_of(config, RELEASED, cache))
        if inputs and not again and (cell := read_stored(cache, inputs)):
            return replace(cell, stored=True)
        result, folder = run(config, terminal(io.StringIO()), stop, pool)
    except HarnessError as error:
        return error
    fresh_cell = _cell_of(result, folder)
    if inputs and _repeatable(fresh_cell, folder):
        store.write(cache, inputs, fresh_cell.to_json())
    return fresh_cell


def not_run(config: RunConfig, error: HarnessError) -> Result:
    """The cell of a release that could not be run."""
    unsupported = error.exit_code == ExitCode.UNSUPPORTED
    return Result(
        config.scenario,
        RELEASED,
        chosen_pins(config, RELEASED),
        Outcome.UNSUPPORTED if unsupported else Outcome.INCONCLUSIVE,
        str(error),
        str(lane_of(config) or ""),
        time.strftime("%Y-%m-%d"),
        machine.facts(),
        source=machine.source(),
    )


def _cell_of(result: RunResult, folder: Path) -> Result:
    (trial,) = result.trials
    finding, unclear = trial.finding, trial.status is Status.INCONCLUSIVE
    return replace(
        trial,
        reason=f"{finding.another} instead: {finding.message}"
        if finding and finding.another
        else trial.reason,
        seconds=round(trial.seconds, 2),
        folder=str(folder),
        log=tuple(last_lines(folder, trial)) if unclear else (),
    )


def _repeatable(fresh_cell: Result, folder: Path) -> bool:
    """Whether another run would give the same cell: not after a deadline or an interruption."""
    if fresh_cell.status is Status.INCONCLUSIVE:
        ended = map(read_json, folder.glob(f"{RELEASED}/**/{EXIT_FILE}"))
        return not any(e["timed_out"] or e["interrupted"] or e["survivors"] for e in ended)
    return fresh_cell.status.certain


def platform_here(config: RunConfig) -> tuple[str, ...]:
    """The platform that a cell of this config would have here, see ``Result.platform``."""
    facts = machine.facts()
    return platform_of(str(lane_of(config) or ""), facts["python"], facts["torch"])


def exit_code(cells: Sequence[Result]) -> int:
    """3 if a cell is inconclusive, otherwise 0."""
    unclear = any(entry.status is Status.INCONCLUSIVE for entry in cells)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED
