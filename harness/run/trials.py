"""The trials of a run: as many at once as fit on the machine, each graded as soon as it ends."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Lane, Records, Scenario
from harness.bugs.packages import import_name
from harness.bugs.results import Result
from harness.rank.exits import Identity, trial_folder
from harness.rank.run_folder import last_record
from harness.rank.shims import needed
from harness.releases.overlay import Overlay
from harness.run.grade import grade_trial
from harness.run.job import Graded, Job, Prepared, RunFolder, room
from harness.run.launch import RankSettings, launch, rank_environment
from harness.run.server_pool import OverlayServer, Wanted
from harness.run.verdict_text import print_failure, print_trial
from harness.system import machine


def content(job: Job, ready: Prepared, variant: str) -> dict[str, Any]:
    """The entry of a trial in run.json."""
    scenario, params, stack = job.config.scenario, asdict(job.config.params), ready.stacks[variant]
    trial = trial_content(scenario, variant, params, stack.pins, ready.lane) | {"date": stack.date}
    if variant in ready.refusals:
        return trial | {"unsupported": ready.refusals[variant]}
    overlay = ready.overlays[variant]
    if job.config.detectors:
        trial |= {"folder": uuid.uuid4().hex}
    return trial | {
        "overlay": {
            "key": overlay.key,
            "site": str(overlay.site),
            "made": overlay.is_new,
            "lock": overlay.lock.splitlines(),
            "diff": overlay.diff.splitlines(),
        },
        "files": watched(job.scenario, variant, overlay),
    }


def watched(scenario: Scenario, variant: str, overlay: Overlay) -> dict[str, str]:
    """The hashes of the files with the bug, which every rank must load.

    The variant ``released`` may lack a file. For any other variant a missing file has an empty
    hash: no rank can load it, so the trial is inconclusive.
    """
    files = scenario.watched
    if variant == RELEASED:
        files = tuple(file for file in files if overlay.has(file))
    return {file: overlay.hash_of(file) if overlay.has(file) else "" for file in files}


def run_all(job: Job, ready: Prepared, folder: RunFolder) -> Graded:
    """Run and grade the trials, several at once; print the results in the order of the variants."""
    graded = Graded([], {})
    with ThreadPoolExecutor(number_at_once(job, ready), "trial") as workers:
        trials = [
            workers.submit(_run, job, ready, folder, variant) for variant in folder.record["trials"]
        ]
        try:
            for trial in trials:
                result, records = trial.result()
                graded.trials.append(result)
                if records is not None:
                    graded.records[result.variant] = records
                print_trial(job.console, result)
                print_failure(job.console, folder.path, result)
        except BaseException:
            job.ended.set()
            workers.shutdown(cancel_futures=True)
            raise
    return graded


def number_at_once(job: Job, ready: Prepared) -> int:
    """The number of trials that fit on the GPUs or the cores at once, by their ranks."""
    if not ready.runnable:
        return 1
    most = max(job.scenario.ranks_of(variant) for variant in ready.runnable)
    return min(room(ready.lane, most, job.config.launch), len(ready.runnable))


def _run(
    job: Job, ready: Prepared, folder: RunFolder, variant: str
) -> tuple[Result, Records | None]:
    """Run a trial, unless it is unsupported here, and grade it; its records if it counts."""
    if variant not in ready.refusals:
        with _devices(job, ready.lane, variant) as devices:
            _run_launches(job, ready, folder, variant, devices)
        origin, target = trial_folder(folder.path, folder.record, variant), folder.path / variant
        if origin != target:
            origin.rename(target)
    return grade_trial(folder.record, folder.path, variant)


@contextmanager
def _devices(job: Job, lane: Lane, variant: str) -> Iterator[list[str]]:
    """The numbers of the GPUs that a trial has for itself; none on the cpu lane."""
    if lane is Lane.CPU:
        yield []
        return

    def wait() -> None:
        job.say("waiting for GPUs that another run is using")
        time.sleep(0.2)

    needed = machine.gpus_of(job.scenario.ranks_of(variant))
    folder, sharing = machine.own_folder(job.cache, "gpus"), job.config.launch.sharing
    with machine.leased(needed, folder, wait, sharing) as gpus:
        yield [gpu.number for gpu in gpus]


def _run_launches(
    job: Job, ready: Prepared, folder: RunFolder, variant: str, devices: Sequence[str]
) -> None:
    """Run the launches of a trial in order; stop after one that fails."""
    trial = trial_folder(folder.path, folder.record, variant)
    for name in folder.record["trials"][variant]["launches"]:
        ended = launch(
            folder.path,
            trial,
            Identity.of(folder.record, variant, name),
            replace(_settings(job, ready, variant), devices=tuple(devices)),
            timeout=job.config.launch.timeout,
            tick=partial(_show_step, job, trial / name, f"running {variant} {name}".rstrip()),
            server=server(job, ready, variant),
        )
        if ended.code or ended.timed_out:
            return


def _settings(job: Job, ready: Prepared, variant: str) -> RankSettings:
    """What a variant's ranks use of the machine, without GPUs.

    Each overlay has its own folder for compiled extensions: another overlay cannot load them.
    """
    overlay = ready.overlays[variant]
    extensions = machine.own_folder(job.cache, "extensions") / overlay.key
    interpreter, config = job.config.installed, job.config.launch
    python = interpreter.executable if interpreter else sys.executable
    return RankSettings(ready.lane, overlay.site, extensions, config.threads, python)


def server(job: Job, ready: Prepared, variant: str) -> OverlayServer | None:
    """The server that a variant's launches are forked from; None if launches are cold."""
    if not job.config.launch.warm:
        return None
    shims, modules = _imports(job, ready, variant)
    settings = _settings(job, ready, variant)
    needs = Wanted(
        rank_environment(settings),
        shims,
        modules,
        tuple(catalog.places()[name] for name in job.config.together or [job.config.scenario]),
        settings.python,
    )
    return job.pool.server(needs)


def _imports(job: Job, ready: Prepared, variant: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The shims and modules that a server installs and imports.

    Scenarios that run on the same installed packages share one server, so it imports for all.
    """
    chosen: Mapping[str, str] = ready.stacks[variant].pins
    if installed := job.config.installed:
        names = {pin for name in job.config.together for pin in catalog.scenario(name).pins}
        chosen = {name: installed.packages[name].version for name in sorted(names)}
    shims = tuple(point.name for point in needed(chosen, ready.lane))
    return shims, tuple(map(import_name, chosen))


def _show_step(job: Job, launched: Path, activity: str) -> None:
    """Show the step that rank 0 of a launch has reached."""
    step = (last_record(launched, 0) or {}).get("step")
    job.say(activity, f"step {step}" if step else "")


def trial_content(
    scenario: str, variant: str, params: Mapping[str, Any], chosen: Mapping[str, str], lane: Lane
) -> dict[str, Any]:
    """What follows from the catalogue for a trial with these parameters and pins.

    The variant's own parameters replace those in ``params``. Raises ValueError if the scenario does
    not accept them.
    """
    spec = catalog.scenario(scenario)
    of_variant = spec.variant(variant)
    params = {**params, **of_variant.params}
    catalog.load(scenario).Params(**params)
    return {
        "about": spec.about(variant),
        "expect": of_variant.expect,
        "triggers": of_variant.triggers,
        "ranks": spec.ranks_of(variant),
        "launches": list(spec.launches),
        "params": params,
        "pins": dict(chosen),
        "modules": {name: import_name(name) for name in chosen},
        "shims": [point.name for point in needed(chosen, lane)],
        "defects": [defect.name for defect in of_variant.defects],
    }
