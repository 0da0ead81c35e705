"""A run, from its config to its verdict. The command line, pytest and others call ``run``."""

from __future__ import annotations

import io
import json
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Lane
from harness.bugs.results import RunResult
from harness.rank.exits import FORMAT
from harness.rank.run_folder import VERDICT_FILE, create_run_folder, shared
from harness.releases import overlay, overlay_cache
from harness.run import trials
from harness.run.grade import result_of_run
from harness.run.job import (
    Job,
    Prepared,
    Resolved,
    RunFolder,
    choose_lane,
    chosen_pins,
    job_of,
    stack_of,
)
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
    seconds: dict[str, float] = {}
    with job_of(config, console or terminal(), pool, stop) as job:
        with _timed(seconds, "resolve"):
            resolved = resolve(job)
        with _timed(seconds, "overlay"):
            ready = prepare(job, resolved)
        with _timed(seconds, "hold"):
            job.resources.enter_context(shared(config.runs))
        with _timed(seconds, "write"):
            folder = write_run(job, ready)
        with _timed(seconds, "launch"):
            graded = trials.run_all(job, ready, folder)
        with _timed(seconds, "grade"):
            result = result_of_run(config.scenario, graded.trials, graded.records)
        seconds["total"] = time.monotonic() - job.started
        write_json(folder.path / VERDICT_FILE, result.to_json() | {"seconds": seconds})
        print_verdict(job.console, result, seconds["total"], folder.path)
    return result, folder.path


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Note the wall seconds of a step."""
    start = time.monotonic()
    yield
    seconds[step] = time.monotonic() - start


def prepared(config: RunConfig, pool: Pool) -> None:
    """Make the overlays of a run, and start its servers in ``pool``."""
    with job_of(config, terminal(io.StringIO()), pool) as job:
        prepare(job, resolve(job))


def resolve(job: Job) -> Resolved:
    """Decide the lane and the releases of each variant."""
    config, scenario = job.config, job.scenario
    most = max(scenario.ranks_of(v) for v in config.variants)
    try:
        lane = choose_lane(scenario, most, config.launch.lane)
    except Unsupported as error:
        lane = Lane.GPU if config.launch.lane == "gpu" else Lane.CPU
        stacks = {variant: _refused(config, variant) for variant in config.variants}
        return Resolved(lane, stacks, dict.fromkeys(config.variants, str(error)))
    wanted_gpus = config.launch.lane == "auto" and Lane.GPU in scenario.lanes and machine.gpus()
    if lane is Lane.CPU and wanted_gpus:
        job.console.print(f"runs on the CPU: {machine.why_no_gpus(most)}")
    stacks, refusals = {}, {}
    python = config.installed.version if config.installed else platform.python_version()
    for variant in config.variants:
        try:
            stacks[variant] = stack_of(config, variant, job.cache)
        except Unsupported as error:  # a torch that is not available
            stacks[variant] = _refused(config, variant)
            refusals[variant] = str(error)
            continue
        if not pins.covers(scenario, stacks[variant].pins):
            refusals[variant] = f"this scenario is about {scenario.releases} only"
        elif why := pins.why_not_imported(stacks[variant].pins, python):
            refusals[variant] = why
    return Resolved(lane, stacks, refusals)


def _refused(config: RunConfig, variant: str) -> pins.Stack:
    """The releases of a variant that is not run."""
    return pins.Stack(chosen_pins(config, variant), time.strftime("%Y-%m-%d"), *pins.here())


def prepare(job: Job, resolved: Resolved) -> Prepared:
    """Get an overlay for each variant, several at a time, and start the servers."""
    overlay_cache.delete_unfinished(job.cache)
    ready = Prepared(resolved.lane, resolved.stacks, dict(resolved.refusals), {})
    if user := job.config.installed:
        for variant in resolved.runnable:
            ready.overlays[variant] = overlay.installed(user, resolved.stacks[variant].pins)
    else:
        _borrow(job, ready)
    for variant in list(ready.overlays)[: machine.cores()]:
        trials.server(job, ready, variant)  # it imports while the run goes on
    return ready


def _borrow(job: Job, ready: Prepared) -> None:
    """Hold the overlays of the variants until the run ends; make those that are missing."""
    defects = {v: job.scenario.variant(v).defects for v in ready.runnable}
    with overlay.builders() as builders:
        making = {
            v: builders.submit(overlay.build, ready.stacks[v], defects[v], job.cache)
            for v in defects
        }
        for variant, future in making.items():
            stack = ready.stacks[variant]
            if overlay.is_built(stack, defects[variant], job.cache):
                job.progress.say("checking the overlays")
            else:
                job.progress.say(f"making the overlay of {stack} for {variant}")
            try:
                fresh = future.result()
                loan = overlay.borrow(stack, defects[variant], job.cache)
                borrowed = job.resources.enter_context(loan)
                ready.overlays[variant] = replace(borrowed, is_new=fresh)
            except Unsupported as error:
                ready.refusals[variant] = str(error)


def make_overlay(config: RunConfig, variant: str, cache: Path) -> None:
    """Make the overlay that a variant of a run needs, if it is missing."""
    stack = stack_of(config, variant, cache)
    overlay.build(stack, catalog.scenario(config.scenario).variant(variant).defects, cache)


def write_run(job: Job, ready: Prepared) -> RunFolder:
    """Make the run folder with run.json, which is all that ranks read."""
    config = job.config
    installed = {name: pin for stack in ready.stacks.values() for name, pin in stack.pins.items()}
    record = {
        "format": FORMAT,
        "run": uuid.uuid4().hex,
        "scenario": config.scenario,
        "command": config.command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
        "lane": ready.lane,
        "params": asdict(config.params),
        "pins": installed if config.installed else dict(config.pins),
        "installed": config.installed is not None,
        "launch": asdict(config.launch),
        "source": machine.source(),
        "machine": machine.facts() | _other_python(job, ready),
        "environment": machine.environment(),
        **({"detectors": [asdict(one) for one in config.detectors]} if config.detectors else {}),
        "trials": {variant: trials.content(job, ready, variant) for variant in config.variants},
    }
    record = json.loads(json.dumps(record))  # as a reader sees it
    about = "score" if config.detectors else config.scenario  # detectors must not know it
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{about}-{uuid.uuid4().hex[:6]}"
    folder = RunFolder(create_run_folder(config.runs, name, record), record)
    print_header(job.console, record)
    return folder


def _other_python(job: Job, ready: Prepared) -> dict[str, str | None]:
    """The Python and the torch of an interpreter that is not this one, or the torch of a run that
    pins torch: not always the one that is installed."""
    if interpreter := job.config.installed:
        torch = interpreter.packages["torch"].version if "torch" in interpreter.packages else None
        return {"python": interpreter.version, "torch": torch}
    pinned = {stack.pins[pins.TORCH] for stack in ready.stacks.values() if pins.TORCH in stack.pins}
    return {"torch": pinned.pop()} if len(pinned) == 1 else {}
