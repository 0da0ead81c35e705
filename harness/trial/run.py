"""A run, from its config to its verdict: the steps in their order.

``run`` is what the command line, pytest and everything else calls.
"""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import catalog, machine
from harness.config import RunConfig
from harness.report import (
    Progress,
    print_failure,
    print_header,
    print_trial,
    print_verdict,
    terminal,
)
from harness.spec import RELEASED, Inconclusive, Lane, RunResult, Scenario, TrialResult, Unsupported
from harness.trial import leftovers, loaded_files, run_schema
from harness.trial.grade import grade, grade_trial
from harness.trial.launch import Surroundings, launch, rank_environment
from harness.trial.records import (
    FORMAT,
    VERDICT_FILE,
    Identity,
    create_run_folder,
    last_record,
    write_json,
)
from harness.trial.server_pool import Pool
from harness.trial.servers import OverlayServer, Wanted
from harness.upstream import overlay, overlay_cache, pins, resolution
from harness.upstream.overlay import Overlay


@dataclass
class Job:
    """One run on its way through the steps; each step adds what the next ones need."""

    config: RunConfig
    scenario: Scenario
    cache: Path
    console: Console
    progress: Progress
    kept: ExitStack
    """Holds the overlays until the run is over."""
    pool: Pool
    stop: threading.Event
    """Ends the run from outside."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Ends the trials that still run, when one of them has ended the run."""
    started: float = field(default_factory=time.monotonic)
    lane: Lane = Lane.CPU
    overlays: dict[str, Overlay] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a variant cannot run here."""
    stacks: dict[str, pins.Stack] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    """The content of run.json."""
    folder: Path = Path()
    result: RunResult | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds by step."""


def run(
    config: RunConfig,
    console: Console | None = None,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
) -> tuple[RunResult, Path]:
    """Run the variants that the config names; the result, and the run folder with the evidence.

    Setting ``stop`` ends the run from another thread, as Ctrl-C does from the terminal. ``pool``
    has the processes that this run may share with others of its command. Raises HarnessError where
    there is nothing to grade: a mistake of the user's, no room on the disk, no network and no
    overlay.
    """
    with _job(config, console or terminal(), pool, stop) as job:
        for name, step in STEPS:
            start = time.monotonic()
            step(job)
            job.seconds[name] = time.monotonic() - start
    return _judged(job), job.folder


def prepared(config: RunConfig, pool: Pool) -> None:
    """Have a run's overlays made, and the processes in ``pool`` that it needs started."""
    with _job(config, terminal(io.StringIO()), pool) as job:
        resolve(job)
        prepare(job)


@contextmanager
def _job(
    config: RunConfig,
    console: Console,
    pool: Pool | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Job]:
    with ExitStack() as kept, Progress(console) as progress:
        yield Job(
            config,
            catalog.scenario(config.scenario),
            machine.cache_folder(),
            console,
            progress,
            kept,
            pool or kept.enter_context(Pool()),
            stop or threading.Event(),
        )


def resolve(job: Job) -> None:
    """Decide the lane, and each variant's pins as of their day."""
    config, scenario = job.config, job.scenario
    most = max(scenario.ranks_of(v) for v in config.variants)
    try:
        job.lane = machine.choose_lane(scenario, most, config.launch.lane)
    except Unsupported as error:
        job.lane = Lane.GPU if config.launch.lane == "gpu" else Lane.CPU
        job.refusals = {variant: str(error) for variant in config.variants}
    for variant in config.variants:
        if variant in job.refusals:
            chosen = chosen_pins(config, variant)
            job.stacks[variant] = pins.Stack(chosen, time.strftime("%Y-%m-%d"), *pins.here())
        else:
            job.stacks[variant] = stack_of(config, variant, job.cache)
            if not pins.covers(scenario, job.stacks[variant].pins):
                job.refusals[variant] = f"this scenario is about {scenario.releases} only"


def chosen_pins(config: RunConfig, variant: str) -> dict[str, str]:
    """The releases that a variant runs on: the user's choice, the variant's, the scenario's."""
    scenario = catalog.scenario(config.scenario)
    return pins.complete(scenario, {**config.pins, **scenario.pins_of(variant)})


def stack_of(config: RunConfig, variant: str, cache: Path) -> pins.Stack:
    """These releases, as of their day."""
    scenario = catalog.scenario(config.scenario)
    if config.installed:
        found = {name: metadata.version(name) for name in scenario.pins}
        return pins.Stack(found, time.strftime("%Y-%m-%d"), *pins.here())
    return resolution.stack(scenario, chosen_pins(config, variant), cache, day=config.date)


def prepare(job: Job) -> None:
    """Borrow an overlay for each variant, made now where there is none yet, several at a time."""
    overlay_cache.delete_unfinished(job.cache)
    wanted = [variant for variant in job.config.variants if variant not in job.refusals]
    if job.config.installed:
        job.overlays = {v: overlay.installed(job.stacks[v].pins) for v in wanted}
    else:
        _borrow(job, wanted)
    for variant in list(job.overlays)[: machine.cores()]:
        _server(job, variant)  # it imports while the run goes on


def _borrow(job: Job, variants: Sequence[str]) -> None:
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
                lent = job.kept.enter_context(overlay.borrowed(stack, defects, job.cache))
                job.overlays[variant] = replace(lent, made=fresh)
            except Unsupported as error:
                job.refusals[variant] = str(error)


def make_overlay(config: RunConfig, variant: str, cache: Path) -> None:
    """Make the overlay that a variant of a run will need, where there is none yet."""
    stack = stack_of(config, variant, cache)
    overlay.make(stack, catalog.scenario(config.scenario).variant(variant).defects, cache)


def hold(job: Job) -> None:
    """Hold the folder of the runs until this one is over, rid of what killed runs left there."""
    job.kept.enter_context(leftovers.shared(job.config.runs))


def write_down(job: Job) -> None:
    """Make the run folder: run.json is all that the ranks get to see."""
    config = job.config
    job.record = {
        "format": FORMAT,
        "run": uuid.uuid4().hex,
        "scenario": config.scenario,
        "command": config.command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
        **_asked(job),
        "launch": asdict(config.launch),
        "source": machine.source(),
        "machine": machine.facts(),
        "environment": machine.environment(),
    }
    job.record["trials"] = {variant: _trial(job, variant) for variant in config.variants}
    job.record = json.loads(json.dumps(job.record))  # as whoever reads it will see it
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.scenario}-{uuid.uuid4().hex[:6]}"
    job.folder = create_run_folder(config.runs, name, job.record)
    print_header(job.console, job.record)


def _asked(job: Job) -> dict[str, Any]:
    """What the catalogue must know of a run to say what its trials are."""
    config = job.config
    return {
        "lane": job.lane,
        "params": asdict(config.params),
        "pins": _named(job),
        "installed": config.installed,
    }


def _named(job: Job) -> dict[str, str]:
    """The releases that the user named; of an environment as it is, all that are asked."""
    if not job.config.installed:
        return dict(job.config.pins)
    return {name: pin for stack in job.stacks.values() for name, pin in stack.pins.items()}


def _trial(job: Job, variant: str) -> dict[str, Any]:
    told = run_schema.trial(job.config.scenario, variant, job.record)
    told["date"] = job.stacks[variant].date
    if variant in job.refusals:
        return told | {"unsupported": job.refusals[variant]}
    lent = job.overlays[variant]
    return told | {
        "overlay": {
            "key": lent.key,
            "site": str(lent.site),
            "made": lent.made,
            "lock": lent.lock.splitlines(),
            "diff": lent.diff.splitlines(),
        },
        "files": _watched(job.scenario, variant, lent),
    }


def _watched(scenario: Scenario, variant: str, lent: Overlay) -> dict[str, str]:
    """The hashes of the files with the bug in them, which every rank must have loaded.

    A release that is asked as published may lack one. Of any other variant, a missing file is kept
    without a hash: nobody can have loaded it, and the trial proves nothing.
    """
    files = scenario.watched
    if variant == RELEASED:
        files = tuple(file for file in files if lent.has(file))
    return {file: lent.hash_of(file) if lent.has(file) else "" for file in files}


def launch_trials(job: Job) -> None:
    """Run the trials, as many at once as there is room for; each is graded as soon as it is over,
    and told in the order in which they were asked."""
    variants = list(job.record["trials"])
    with ThreadPoolExecutor(_at_once(job), "trial") as workers:
        ended = [workers.submit(_launched, job, variant) for variant in variants]
        try:
            for trial in ended:
                result = trial.result()
                print_trial(job.console, result)
                print_failure(job.console, job.folder, result)
        except BaseException:
            job.ended.set()
            workers.shutdown(cancel_futures=True)
            raise


def _at_once(job: Job) -> int:
    """How many trials there is room for at once: by their ranks, on the GPUs or the cores."""
    runnable = _runnable(job)
    if not runnable:
        return 1
    most = max(job.scenario.ranks_of(variant) for variant in runnable)
    room = machine.room(job.lane, most, job.config.launch.threads)
    return min(room, len(runnable))


def _runnable(job: Job) -> list[str]:
    return [variant for variant in job.config.variants if variant not in job.refusals]


def _launched(job: Job, variant: str) -> TrialResult:
    """Run a trial to its end, unless this machine cannot, and grade it."""
    if variant not in job.refusals:
        with _devices(job, variant) as devices:
            _launch_all(job, variant, devices)
    return grade_trial(job.record, job.folder, variant)[0]


@contextmanager
def _devices(job: Job, variant: str) -> Iterator[list[str]]:
    """The numbers of the GPUs that are a trial's alone while it lasts; none on the CPU lane."""
    if job.lane is Lane.CPU:
        yield []
        return

    def wait() -> None:
        _say(job, "waiting for GPUs that another run is using")
        time.sleep(0.2)

    ranks = job.scenario.ranks_of(variant)
    with machine.leased(ranks, machine.own_place(job.cache, "gpus"), wait) as lent:
        yield [gpu.number for gpu in lent]


def _launch_all(job: Job, variant: str, devices: Sequence[str]) -> None:
    """Run the launches of a trial in their order; one that fails is the last."""
    lent = job.overlays[variant]
    for name in job.record["trials"][variant]["launches"]:
        of = Identity.of(job.record, variant, name)
        ended = launch(
            job.folder,
            of,
            replace(_around(job, variant), devices=tuple(devices)),
            timeout=job.config.launch.timeout,
            tick=_ticker(job, variant, name),
            server=_server(job, variant),
        )
        if ended.code or ended.timed_out:
            return
        loaded_files.note(job.folder, of, lent.as_made)


def _around(job: Job, variant: str) -> Surroundings:
    """What a variant's processes see of the machine, but for the GPUs that are leased for them.

    Each stack has a folder for what it compiles, as they break each other's.
    """
    lent = job.overlays[variant]
    extensions = machine.own_place(job.cache, "extensions") / lent.key
    return Surroundings(job.lane, lent.site, extensions, job.config.launch.threads)


def _server(job: Job, variant: str) -> OverlayServer | None:
    """The process to fork a variant's trial from; None where each is to be a launch of its own."""
    if not job.config.launch.warm:
        return None
    trial = run_schema.trial(job.config.scenario, variant, _asked(job))
    files = job.overlays[variant].files or {}
    wanted = Wanted(
        rank_environment(_around(job, variant)),
        tuple(trial["shims"]),
        tuple(trial["modules"].values()),
        catalog.places()[job.config.scenario],
        {file: made.sha256 for file, made in files.items()},
    )
    return job.pool.server(wanted)


def _ticker(job: Job, variant: str, launch: str) -> Callable[[], None]:
    def tick() -> None:
        last = last_record(job.folder / variant / launch, 0) or {}
        step = last.get("step")
        _say(job, f"running {variant} {launch}".rstrip(), f"step {step}" if step else "")

    return tick


def _say(job: Job, what: str, detail: str = "") -> None:
    if job.stop.is_set() or job.ended.is_set():
        raise KeyboardInterrupt
    job.progress.say(what, detail)


def judge(job: Job) -> None:
    """Grade the whole run from its folder, and store the verdict beside the records."""
    start = time.monotonic()
    job.result = grade(job.folder)
    now = time.monotonic()
    taken = {**job.seconds, "grade": now - start, "total": now - job.started}
    write_json(job.folder / VERDICT_FILE, job.result.to_json() | {"seconds": taken})


def _judged(job: Job) -> RunResult:
    if job.result is None:
        raise Inconclusive("the run was not judged")
    return job.result


def tell(job: Job) -> None:
    """Print the verdict."""
    print_verdict(job.console, _judged(job), time.monotonic() - job.started, job.folder)


STEPS: tuple[tuple[str, Callable[[Job], None]], ...] = (
    ("resolve", resolve),
    ("overlay", prepare),
    ("hold", hold),
    ("write", write_down),
    ("launch", launch_trials),
    ("grade", judge),
    ("report", tell),
)
"""The whole of a run, on one screen."""
