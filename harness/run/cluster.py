"""Cells and runs as tasks of Slurm, for ``on=slurm``: what nodes get, and what comes back.

Overlays are made once in the shared cache: by this machine, by a first job, or by the tasks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Lane
from harness.bugs.results import Result
from harness.releases import overlay
from harness.run import cells, slurm, suite
from harness.run.job import stack_of
from harness.run.run import make_overlay
from harness.run.run_config import HERE, JOB, RunConfig
from harness.run.slurm import Say, Shape, Work
from harness.run.suite import Done
from harness.system.errors import Fault, HarnessError, UserError
from harness.system.machine import cache_folder
from harness.system.terminal import Progress


def find_all(
    configs: Sequence[RunConfig],
    *,
    again: bool = False,
    failed: cells.Failed | None = None,
    say: Say | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """The cells of configs, as ``executor.find_all``: stored ones first, then tasks of Slurm."""
    missing = []
    for index, config in enumerate(configs):
        stored = None if again else _stored(config)
        if stored:
            yield index, stored
        else:
            missing.append(index)
    tasks = [configs[index] for index in missing]
    do = partial(cell_task, again=again)
    for at, answer in _results(tasks, do, say or _silent):
        index = missing[at]
        if isinstance(answer, (UserError, Fault)) and failed:
            failed(index, answer)
        elif isinstance(answer, UserError):
            raise answer
        elif isinstance(answer, HarnessError):
            yield index, cells.not_run(configs[index], answer)
        else:
            yield index, answer


def run_all(configs: Sequence[RunConfig], console: Console) -> Generator[tuple[int, Done]]:
    """Run several configs; yields the index of each and how it ended, after printing its output.

    Raises UserError for a mistake in the command that only a run finds.
    """
    with Progress(console) as progress:
        for index, answer in _results(configs, run_task, progress.tally):
            if isinstance(answer, UserError):
                raise answer
            block, ending = "", answer
            if not isinstance(answer, HarnessError):
                block, ending = answer
                if ending.folder and not ending.folder.is_dir():
                    ending = Fault(f"{ending.folder} is not here: name runs=DIR that all nodes see")
            if isinstance(ending, HarnessError):
                ending = suite.not_run(configs[index].scenario, ending, console)
            else:
                console.print(block, end="")
            yield index, ending


def _results(
    configs: Sequence[RunConfig], do: Callable[[RunConfig], Any], say: Say
) -> Iterator[tuple[int, Any]]:
    """The index of each config with the value of its task, or with the error that ended it."""
    if not configs:
        return
    on = configs[0].on
    refused = _make_overlays(configs, say) if on.overlays == HERE else {}
    yield from refused.items()
    indices = [index for index in range(len(configs)) if index not in refused]
    if not indices:
        return
    if on.overlays == JOB:
        maker = [Work(list(configs), Shape(overlay.BUILDERS, 0))]
        list(slurm.results(maker, overlays_task, on, say))
    works = [Work(configs[index], _shape(configs[index])) for index in indices]
    for at, answer in slurm.results(works, do, on, say):
        yield indices[at], answer


def _make_overlays(configs: Sequence[RunConfig], say: Say) -> dict[int, HarnessError]:
    """Make the overlays of configs. Returns why configs cannot run, by index: a node, perhaps
    without a network, would give another reason."""
    folder, why = cache_folder(), {}
    with overlay.builders() as builders:
        futures = [
            [builders.submit(make_overlay, config, variant, folder) for variant in config.variants]
            for config in configs
            if config.params is not None
        ]
        sound = [index for index, config in enumerate(configs) if config.params is not None]
        for number, (index, variants) in enumerate(zip(sound, futures, strict=True)):
            say(f"making overlays: {number} of {len(futures)} done")
            errors = [future.exception() for future in variants]
            unexpected = next((e for e in errors if e and not isinstance(e, HarnessError)), None)
            if unexpected:
                raise unexpected
            refusals = [error for error in errors if isinstance(error, HarnessError)]
            if len(refusals) == len(errors):  # otherwise the other variants can run
                why[index] = refusals[0]
    return why


def overlays_task(configs: Sequence[RunConfig]) -> None:
    """Make all overlays on a node, before the other tasks run. A task meets an error again."""
    end_with_a_signal()
    _make_overlays(configs, _silent)


def cell_task(config: RunConfig, again: bool) -> Result | HarnessError:
    """What a node does for a cell."""
    end_with_a_signal()
    try:
        return cells.find(config, cache_folder(), again=again, faults=True)
    except HarnessError as error:
        return error


def run_task(config: RunConfig) -> tuple[str, Done] | HarnessError:
    """What a node does for a run: returns what it prints, and how it ended."""
    end_with_a_signal()
    try:
        return suite.run_in_block(config)
    except HarnessError as error:
        return error


def end_with_a_signal() -> None:
    """Let Slurm's SIGTERM end a run with its ranks, as Ctrl-C does; submitit ignores it.

    Then the task has no result, and Slurm says why.
    """
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _silent(_: str) -> None:
    """Shows nothing."""


def _stored(config: RunConfig) -> Result | None:
    with suppress(HarnessError):  # making its overlay meets the error again
        folder = cache_folder()
        inputs = cells.inputs_of(config, stack_of(config, RELEASED, folder))
        cell = cells.read_stored(folder, inputs)
        return replace(cell, stored=True) if cell else None
    return None


def _shape(config: RunConfig) -> Shape:
    """The cores for a run on each of its nodes, one for each thread of its ranks, and its GPUs."""
    if config.params is None:  # a broken scenario
        return Shape(1, 0)
    scenario = catalog.scenario(config.scenario)
    most, nodes = max(map(scenario.ranks_of, config.variants)), config.launch.nodes
    ranks = -(-most // nodes)
    gpus = (config.on.gpus or ranks) if config.launch.lane == Lane.GPU else 0
    return Shape(config.on.cpus or ranks * config.launch.threads, gpus, nodes)
