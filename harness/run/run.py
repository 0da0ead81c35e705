"""A run, from its config to its verdict. The command line, pytest and others call ``run``."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Defect, Lane
from harness.rank.exits import FORMAT
from harness.rank.run_folder import VERDICT_FILE, create_run_folder, shared
from harness.releases import overlay, overlay_cache
from harness.releases.overlay import Overlay
from harness.run import trials
from harness.run.grade import of_trials
from harness.run.job import Job, choose_lane, chosen_pins, job_of, stack_of
from harness.run.results import RunResult
from harness.run.run_config import RunConfig
from harness.run.server_pool import Pool
from harness.run.verdict_text import print_header, print_verdict
from harness.system import machine
from harness.system.errors import Unsupported
from harness.system.files import write_json
from harness.system.installation import refuse_without_torch
from harness.system.terminal import terminal


def run(
    config: RunConfig,
    console: Console | None = None,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
) -> tuple[RunResult, Path]:
    """Run the variants that the config names; returns the result and the run folder.

    Setting ``stop`` ends the run from another thread, as Ctrl-C does from the terminal. ``pool``
    contains the servers that the runs of a command share. Raises HarnessError if there is nothing
    to grade: a mistake of the user, no torch, a full disk, no network and no overlay.
    """
    if config.installed is None:
        refuse_without_torch("a run")
    with job_of(config, console or terminal(), pool, stop) as job:
        for name, step in STEPS:
            start = time.monotonic()
            step(job)
            job.seconds[name] = time.monotonic() - start
    return job.result, job.folder


def prepared(config: RunConfig, pool: Pool) -> None:
    """Make the overlays of a run, and start its servers in ``pool``."""
    with job_of(config, terminal(io.StringIO()), pool) as job:
        resolve(job)
        prepare(job)


def resolve(job: Job) -> None:
    """Decide the lane and the releases of each variant."""
    config, scenario = job.config, job.scenario
    most = max(scenario.ranks_of(v) for v in config.variants)
    try:
        job.lane = choose_lane(scenario, most, config.launch.lane, config.launch.nodes)
    except Unsupported as error:
        job.lane = Lane.GPU if config.launch.lane == "gpu" else Lane.CPU
        job.refusals = {variant: str(error) for variant in config.variants}
    for variant in config.variants:
        if variant in job.refusals:
            job.stacks[variant] = _refused(config, variant)
        else:
            _resolve(job, variant)


def _resolve(job: Job, variant: str) -> None:
    try:
        job.stacks[variant] = stack_of(job.config, variant, job.cache)
    except Unsupported as error:  # a torch that is not at hand
        job.stacks[variant] = _refused(job.config, variant)
        job.refusals[variant] = str(error)
        return
    if not pins.covers(job.scenario, job.stacks[variant].pins):
        job.refusals[variant] = f"this scenario is about {job.scenario.releases} only"


def _refused(config: RunConfig, variant: str) -> pins.Stack:
    """The releases of a variant that is not run."""
    return pins.Stack(chosen_pins(config, variant), time.strftime("%Y-%m-%d"), *pins.here())


def prepare(job: Job) -> None:
    """Get an overlay for each variant, several at a time, and start the servers."""
    overlay_cache.delete_unfinished(job.cache)
    if job.config.installed:
        own = job.config.installed
        job.overlays = {v: overlay.installed(own, job.stacks[v].pins) for v in job.runnable}
    else:
        _borrow(job, job.runnable)
    for variant in list(job.overlays)[: machine.cores()]:
        trials.server(job, variant)  # it imports while the run goes on


def _borrow(job: Job, variants: Sequence[str]) -> None:
    """Hold the overlays of these variants until the run ends; make those that are missing."""
    wanted = {v: (job.stacks[v], job.scenario.variant(v).defects) for v in variants}
    with overlay.makers() as makers:
        made = {v: makers.submit(overlay.make, *wanted[v], job.cache) for v in variants}
        for variant, (stack, defects) in wanted.items():
            if overlay.is_made(stack, defects, job.cache):
                job.progress.say("checking the overlays")
            else:
                job.progress.say(f"making the overlay of {stack} for {variant}")
            try:
                fresh = made[variant].result()
                held = job.resources.enter_context(_borrowed(job, stack, defects))
                job.overlays[variant] = replace(held, made=fresh)
            except Unsupported as error:
                job.refusals[variant] = str(error)


def _borrowed(
    job: Job, stack: pins.Stack, defects: Sequence[Defect]
) -> AbstractContextManager[Overlay]:
    """An overlay in the cache, or a copy of it on the disk of a node."""
    if job.config.on.stage:
        return overlay_cache.borrowed_copy(stack, defects, job.cache, machine.temporary_folder())
    return overlay.borrowed(stack, defects, job.cache)


def make_overlay(config: RunConfig, variant: str, cache: Path) -> None:
    """Make the overlay that a variant of a run needs, if it is missing."""
    stack = stack_of(config, variant, cache)
    overlay.make(stack, catalog.scenario(config.scenario).variant(variant).defects, cache)


def hold(job: Job) -> None:
    """Lock the folder of all runs; remove what killed runs left unfinished there."""
    job.resources.enter_context(shared(job.config.runs))


def write_run(job: Job) -> None:
    """Make the run folder with run.json, which is all that ranks read."""
    config = job.config
    record = {
        "format": FORMAT,
        "run": uuid.uuid4().hex,
        "scenario": config.scenario,
        "command": config.command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
        "lane": job.lane,
        "params": asdict(config.params),
        "pins": _installed_pins(job) if config.installed else dict(config.pins),
        "installed": config.installed is not None,
        "launch": asdict(config.launch),
        "source": machine.source(),
        "machine": machine.facts() | _other_torch(job) | _interpreter(job),
        "environment": machine.environment(),
        **({"detectors": [asdict(one) for one in config.detectors]} if config.detectors else {}),
        "trials": {variant: trials.content(job, variant) for variant in config.variants},
    }
    job.record = json.loads(json.dumps(record))  # as a reader sees it
    about = "score" if config.detectors else config.scenario  # detectors must not know it
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{about}-{uuid.uuid4().hex[:6]}"
    job.folder = create_run_folder(config.runs, name, job.record)
    print_header(job.console, job.record)


def _installed_pins(job: Job) -> dict[str, str]:
    """The versions of the user's own packages; nobody has chosen them."""
    return {name: pin for stack in job.stacks.values() for name, pin in stack.pins.items()}


def _other_torch(job: Job) -> dict[str, str]:
    """The torch of a run that pins torch: not always the one that is installed."""
    pinned = {stack.pins[pins.TORCH] for stack in job.stacks.values() if pins.TORCH in stack.pins}
    return {"torch": pinned.pop()} if len(pinned) == 1 else {}


def _interpreter(job: Job) -> dict[str, str | None]:
    """The Python and the torch of an interpreter that is not this one."""
    own = job.config.installed
    if own is None:
        return {}
    torch = own.packages["torch"].version if "torch" in own.packages else None
    return {"python": own.version, "torch": torch}


def judge(job: Job) -> None:
    """Compare the trials, which are graded, and write verdict.json."""
    start = time.monotonic()
    job.result = of_trials(job.config.scenario, job.trials, job.records)
    now = time.monotonic()
    seconds = {**job.seconds, "grade": now - start, "total": now - job.started}
    write_json(job.folder / VERDICT_FILE, job.result.to_json() | {"seconds": seconds})


def report(job: Job) -> None:
    """Print the verdict."""
    print_verdict(job.console, job.result, time.monotonic() - job.started, job.folder)


STEPS: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("resolve", resolve),
    ("overlay", prepare),
    ("hold", hold),
    ("write", write_run),
    ("launch", trials.run_all),
    ("grade", judge),
    ("report", report),
)
"""The steps of a run, in order."""
