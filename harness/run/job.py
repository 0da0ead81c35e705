"""A run while it is being done: what its steps use, and what each step hands to the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Lane, Records, Scenario
from harness.bugs.results import Result
from harness.releases import resolution
from harness.releases.overlay import Overlay
from harness.run.run_config import LaunchConfig, RunConfig
from harness.run.server_pool import Pool
from harness.system import machine
from harness.system.errors import Unsupported
from harness.system.terminal import Progress


@dataclass(frozen=True)
class Job:
    """What all steps of a run use."""

    config: RunConfig
    scenario: Scenario
    cache: Path
    console: Console
    progress: Progress
    resources: ExitStack
    """Releases the overlays, the run folder's lock and an own pool after the run."""
    pool: Pool
    stop: threading.Event
    """Set from outside, ends the run."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Ends the other trials after one of them has ended the run."""
    started: float = field(default_factory=time.monotonic)

    def say(self, activity: str, detail: str = "") -> None:
        """Show progress; raises KeyboardInterrupt if the run must end."""
        if self.stop.is_set() or self.ended.is_set():
            raise KeyboardInterrupt
        self.progress.say(activity, detail)


@dataclass(frozen=True)
class Resolved:
    """Where a run runs, and with which releases."""

    lane: Lane
    stacks: dict[str, pins.Stack]
    """The releases of each variant."""
    refusals: dict[str, str]
    """Why a variant cannot run here, by variant."""

    @property
    def runnable(self) -> list[str]:
        """The variants that can run here."""
        return [variant for variant in self.stacks if variant not in self.refusals]


@dataclass(frozen=True)
class Prepared(Resolved):
    """A resolved run, with an overlay for each variant that can run."""

    overlays: dict[str, Overlay]


@dataclass(frozen=True)
class RunFolder:
    """A run folder, and the content of its run.json."""

    path: Path
    record: dict[str, Any]


@dataclass(frozen=True)
class Graded:
    """The results of the trials, and the records of those that count, by variant."""

    trials: list[Result]
    records: dict[str, Records]


@contextmanager
def job_of(
    config: RunConfig,
    console: Console,
    pool: Pool | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Job]:
    """The job of a run. Leaving the context releases everything that it holds."""
    with ExitStack() as resources, Progress(console) as progress:
        yield Job(
            config,
            catalog.scenario(config.scenario),
            machine.cache_folder(),
            console,
            progress,
            resources,
            pool or resources.enter_context(Pool()),
            stop or threading.Event(),
        )


def chosen_pins(config: RunConfig, variant: str) -> dict[str, str]:
    """The releases of a variant: chosen by the user, the variant or the scenario, in that order."""
    scenario = catalog.scenario(config.scenario)
    return pins.complete(scenario, {**config.pins, **scenario.pins_of(variant)})


def stack_of(config: RunConfig, variant: str, cache: Path) -> pins.Stack:
    """The releases of a variant, with the day for which their dependencies are resolved."""
    scenario = catalog.scenario(config.scenario)
    if config.installed:
        installed = config.installed.packages
        versions = {name: pins.as_pinned(name, installed[name].version) for name in scenario.pins}
        return pins.Stack(versions, time.strftime("%Y-%m-%d"), *pins.here())
    stack = resolution.stack(scenario, chosen_pins(config, variant), cache, day=config.date)
    return replace(stack, patches=config.patches)


def choose_lane(scenario: Scenario, ranks: int, requested: str) -> Lane:
    """The lane to run ``ranks`` ranks on. Raises Unsupported, with the reason, if there is none.

    ``auto`` considers the variant with the most ranks, so that all variants run on one lane. If
    there are GPUs, ranks share them where they must.
    """
    if requested == "auto":
        widest = max(scenario.ranks_of(variant) for variant in scenario.variants)
        has_place = Lane.GPU in scenario.lanes and not machine.why_no_gpus(widest)
        requested = "gpu" if has_place or Lane.CPU not in scenario.lanes else "cpu"
    lane = Lane(requested)
    if lane not in scenario.lanes:
        raise Unsupported(f"does not run on the {lane} lane")
    if lane is Lane.GPU and (reason := machine.why_no_gpus(ranks)):
        raise Unsupported(reason)
    return lane


def room(lane: Lane, ranks: int, launch: LaunchConfig) -> int:
    """How many trials of ``ranks`` ranks this machine can run at once; at least 1."""
    if lane is Lane.GPU:
        return max(1, len(machine.gpus()) // machine.gpus_of(ranks) * launch.sharing)
    return max(1, machine.cores() // (ranks * launch.threads))
