"""Many cells or runs, on this machine or as tasks of Slurm (``on=slurm``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import as_completed
from functools import partial

from rich.console import Console

from harness.bugs.results import Result
from harness.run import cells, suite
from harness.run.run_config import SLURM, RunConfig
from harness.run.server_pool import Pool
from harness.run.verdict_text import summary
from harness.system.errors import ExitCode, Fault, UserError
from harness.system.files import refuse_unless_creatable
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import terminal
from harness.system.text import count

AHEAD = 2
"""How many cells after the running ones import early: imports take longer than most trials."""


def find_all(
    configs: Sequence[RunConfig],
    *,
    again: bool = False,
    jobs: int | None = None,
    failed: cells.Failed | None = None,
    say: Callable[[str], object] | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """Find the cells of many configs; yields the index of a config with its cell, as they end.

    ``failed`` is called instead after a fault of the machine, and for a release that the index no
    longer has. Without it the fault yields an inconclusive cell, and the missing release raises.

    Overlays are built in the background, ahead of the runs. The processes that the next ranks are
    forked from do their imports early. ``jobs`` runs go on at once, by default as many as the cores
    or GPUs have room for. Leaving early ends what still runs; finished cells are stored.

    With ``on=slurm`` each is a task of Slurm instead, and ``say`` shows how far they are.
    """
    if configs[0].on.where == SLURM:
        from harness.run import cluster  # submitit may not be installed

        yield from cluster.find_all(configs, again=again, failed=failed, say=say)
        return
    _refuse_unwritable_runs(configs[0])
    cache, jobs = cache_folder(), jobs or cells.room(configs[0])

    def find_one(index: int, stop: threading.Event, pool: Pool) -> Result | None:
        config, faults = configs[index], bool(failed)
        try:
            return cells.find(config, cache, again=again, stop=stop, pool=pool, faults=faults)
        except (UserError, Fault) as error:
            if failed is None:
                raise
            failed(index, error)
            return None

    make, pool = partial(cells.make_overlay, again=again), Pool(most=2 * jobs + AHEAD)
    with suite.started_ahead(configs, find_one, make, pool, jobs, AHEAD) as running:
        indices = {future: index for index, future in enumerate(running)}
        for future in as_completed(running):
            if cell := future.result():
                yield indices[future], cell


def run_selected(configs: Sequence[RunConfig]) -> int:
    """Run the scenarios that one command line selects; returns the exit code."""
    refuse_without_torch("a run")  # once, and not in the table of several
    if len(configs) > 1:
        return run_all(configs)
    if configs[0].on.where == SLURM:
        ((_, ending),) = side_by_side(configs, terminal())
        return ending.result.exit_code
    _refuse_unwritable_runs(configs[0])
    return suite.run_alone(configs[0])


def _refuse_unwritable_runs(config: RunConfig) -> None:
    """Raise UserError unless run folders can be made, before overlays are. On Slurm only the nodes
    must be able to."""
    refuse_unless_creatable(config.runs / "run", "runs=")


def run_all(configs: Sequence[RunConfig]) -> int:
    """Run several scenarios, print each as one block and then the table; returns the exit code.

    It is 0 if every scenario that this machine supports has the expected verdict. With ``strict``
    an unsupported scenario fails.
    """
    console = terminal()
    started = time.monotonic()
    by_index = dict(side_by_side(configs, console))
    endings = [by_index[index] for index in range(len(configs))]
    console.print()
    console.print(summary([ending.row() for ending in endings]))
    console.print(f"{count(len(endings), 'scenario')} in {time.monotonic() - started:.0f} s")
    codes = [ending.result.exit_code for ending in endings]
    if not configs[0].strict:
        codes = [code for code in codes if code != ExitCode.UNSUPPORTED]
    return ExitCode.worst(codes)


def side_by_side(
    configs: Sequence[RunConfig], console: Console
) -> Generator[tuple[int, suite.Done], None, None]:
    """Run as many at once as ``jobs`` or the GPUs allow; yields the index of each config and how
    its run ended, as they end. Each prints its output as one block, or at once if it is alone."""
    if configs[0].on.where == SLURM:
        from harness.run import cluster  # submitit may not be installed

        yield from cluster.run_all(configs, console)
        return
    _refuse_unwritable_runs(configs[0])
    with suite.started(configs, console) as running:
        indices = {future: index for index, future in enumerate(running)}
        for future in as_completed(running):
            block, ending = future.result()
            console.print(block, end="")
            yield indices[future], ending
