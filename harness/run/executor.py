"""Many cells or runs, on this machine or as tasks of Slurm (``on=slurm``).

On Slurm, overlays are made once in the shared cache: by this machine or by the tasks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from functools import partial
from typing import Any

from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.spec import Lane
from harness.bugs.results import Result
from harness.releases import overlay
from harness.run import cells, suite
from harness.run.run import make_overlay, run
from harness.run.run_config import HERE, SLURM, RunConfig
from harness.run.server_pool import Pool
from harness.run.suite import Done
from harness.run.verdict_text import summary
from harness.system.errors import ExitCode, Fault, HarnessError, UserError
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
) -> Generator[tuple[int, Result], None, None]:
    """Find the cells of many configs; yields the index of a config with its cell, as they end.

    ``failed`` is called instead after a fault of the machine, and for a release that the index no
    longer has. Without it the fault yields an inconclusive cell, and the missing release raises.

    Overlays are built in the background, ahead of the runs. The processes that the next ranks are
    forked from do their imports early. ``jobs`` runs go on at once, by default as many as the user
    chose, or as the cores or GPUs have room for. Leaving early ends what still runs; finished cells
    are stored.
    """
    on_slurm = configs[0].on.where == SLURM
    answers = _on_slurm(configs, again) if on_slurm else _on_this_machine(configs, again, jobs)
    with closing(answers):
        for index, answer in answers:
            if isinstance(answer, Result):
                yield index, answer
            elif failed and isinstance(answer, (UserError, Fault)):
                failed(index, answer)
            elif isinstance(answer, UserError):
                raise answer
            else:
                yield index, cells.not_run(configs[index], answer)


Answers = Generator[tuple[int, Result | HarnessError], None, None]
"""The index of each config with its cell, or why there is none."""


def _on_this_machine(configs: Sequence[RunConfig], again: bool, jobs: int | None) -> Answers:
    _refuse_unwritable_runs(configs[0])
    jobs = jobs or configs[0].jobs or cells.room(configs[0])

    def find(index: int, stop: threading.Event, pool: Pool) -> Result | HarnessError:
        return cells.find(configs[index], cache_folder(), again=again, stop=stop, pool=pool)

    make, pool = partial(cells.make_overlay, again=again), Pool(most=2 * jobs + AHEAD)
    with suite.started_ahead(configs, find, make, pool, jobs, AHEAD) as running:
        indices = {future: index for index, future in enumerate(running)}
        for future in as_completed(running):
            yield indices[future], future.result()


def _on_slurm(configs: Sequence[RunConfig], again: bool) -> Answers:
    """The cells of configs: stored ones first, then tasks of Slurm."""
    stored = {} if again else {n: cells.stored(config) for n, config in enumerate(configs)}
    yield from ((index, cell) for index, cell in stored.items() if cell)
    missing = [index for index in range(len(configs)) if not stored.get(index)]
    for at, answer in _tasks([configs[index] for index in missing], partial(_cell, again=again)):
        yield missing[at], answer


def _cell(config: RunConfig, again: bool) -> Result | HarnessError:
    return cells.find(config, cache_folder(), again=again)


def run_selected(configs: Sequence[RunConfig]) -> int:
    """Run the scenarios that one command line selects; returns the exit code.

    Several are printed as one block each, and then as a table. The exit code is 0 if every scenario
    that this machine supports has the expected verdict. With ``strict`` an unsupported scenario
    fails.
    """
    console, started = terminal(), time.monotonic()
    if len(configs) == 1 and configs[0].on.where != SLURM:
        _refuse_unwritable_runs(configs[0])
        return run(configs[0])[0].exit_code
    by_index = dict(side_by_side(configs, console))
    endings = [by_index[index] for index in range(len(configs))]
    codes = [ending.result.exit_code for ending in endings]
    if len(configs) > 1:
        console.print()
        console.print(summary([ending.row() for ending in endings]))
        console.print(f"{count(len(endings), 'scenario')} in {time.monotonic() - started:.0f} s")
        if not configs[0].strict:
            codes = [code for code in codes if code != ExitCode.UNSUPPORTED]
    return ExitCode.worst(codes)


def _refuse_unwritable_runs(config: RunConfig) -> None:
    """Raise UserError unless run folders can be made, before overlays are. On Slurm only the nodes
    must be able to."""
    refuse_unless_creatable(config.runs / "run", "runs=")


def side_by_side(
    configs: Sequence[RunConfig], console: Console
) -> Generator[tuple[int, Done], None, None]:
    """Run as many at once as ``jobs`` or the GPUs allow; yields the index of each config and how
    its run ended, as they end. Each prints its output as one block, or at once if it is alone.

    Raises UserError for a mistake in the command that only a run finds.
    """
    refuse_without_torch("a run")  # once, and not in the table of several
    if configs[0].on.where == SLURM:
        for index, answer in _tasks(configs, suite.run_in_block):
            if isinstance(answer, UserError):
                raise answer
            block, ending = answer if isinstance(answer, tuple) else ("", answer)
            if isinstance(ending, Done) and ending.folder and not ending.folder.is_dir():
                ending = Fault(f"{ending.folder} is not here: name runs=DIR that all nodes see")
            if isinstance(ending, HarnessError):
                block, ending = "", suite.not_run(configs[index].scenario, ending, console)
            console.print(block, end="")
            yield index, ending
        return
    _refuse_unwritable_runs(configs[0])
    with suite.started(configs, console) as running:
        indices = {future: index for index, future in enumerate(running)}
        for future in as_completed(running):
            block, ending = future.result()
            console.print(block, end="")
            yield indices[future], ending


def _tasks(
    configs: Sequence[RunConfig], do: Callable[[RunConfig], Any]
) -> Iterator[tuple[int, Any]]:
    """The index of each config with the value of its task on Slurm, or with a HarnessError."""
    from harness.run import slurm  # submitit may not be installed

    if not configs:
        return
    on = configs[0].on
    refused = make_overlays(configs) if on.overlays == HERE else {}
    yield from refused.items()
    indices = [index for index in range(len(configs)) if index not in refused]
    works = [slurm.Work(configs[index], slurm.Shape(*shape(configs[index]))) for index in indices]
    for at, answer in slurm.results(works, do, on) if works else ():
        yield indices[at], answer


def make_overlays(configs: Sequence[RunConfig]) -> dict[int, HarnessError]:
    """Make the overlays of configs. Returns why configs cannot run, by index: a node, perhaps
    without a network, would give another reason."""
    folder, refused = cache_folder(), {}
    with overlay.builders() as builders:
        futures = {
            index: [builders.submit(make_overlay, config, v, folder) for v in config.variants]
            for index, config in enumerate(configs)
        }
        for index, variants in futures.items():
            errors = [future.exception() for future in variants]
            if unexpected := [e for e in errors if e and not isinstance(e, HarnessError)]:
                raise unexpected[0]
            if all(errors) and isinstance(errors[0], HarnessError):  # otherwise others can run
                refused[index] = errors[0]
    return refused


def shape(config: RunConfig) -> tuple[int, int]:
    """The cores and the GPUs for a run, a core for each thread of its ranks."""
    scenario = catalog.scenario(config.scenario)
    ranks = max(map(scenario.ranks_of, config.variants))
    gpus = (config.on.gpus or ranks) if config.launch.lane == Lane.GPU else 0
    return config.on.cpus or ranks * config.launch.threads, gpus
