"""What a run does around its launches: watched files, GPUs, parallel trials."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Lane, Outcome
from harness.bugs.pins import Stack, here
from harness.releases.overlay import Overlay
from harness.run import command_line, trials
from harness.run.job import Job, Prepared, RunFolder
from harness.run.server_pool import Pool
from harness.system import machine
from harness.system.errors import Inconclusive
from harness.system.files import sha256
from harness.system.terminal import Progress, terminal
from tests.made_up import set_gpus, trial_result


def test_only_the_released_variant_may_lack_a_file_with_the_bug(tmp_path: Path) -> None:
    scenario = catalog.scenario("tied_resume_weight")
    present, missing = sorted(defect.file for defect in scenario.defects)
    overlay = Overlay("key", tmp_path / "site", "", "")
    file = overlay.site / present
    file.parent.mkdir(parents=True)
    file.write_text("released\n")
    # No rank can load a file without a hash, so grading finds the trial inconclusive.
    assert trials.watched(scenario, "fixed", overlay) == {present: sha256(file), missing: ""}
    assert trials.watched(scenario, "released", overlay) == {present: sha256(file)}


class Launches:
    """Replaces the launches of a trial: two must run at once; notes the GPUs of each trial."""

    def __init__(self, fails: str = "") -> None:
        self.together, self.fails = threading.Barrier(2, timeout=10), fails
        self.gpus: dict[str, list[str]] = {}

    def __call__(
        self, job: Job, ready: Prepared, folder: RunFolder, variant: str, devices: list[str]
    ) -> None:
        self.gpus[variant] = list(devices)
        self.together.wait()
        if variant == self.fails:
            raise Inconclusive("no room on the disk")
        while self.fails:
            job.say("running")
            time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A run of bf16_clip that is about to launch its trials, two ranks each, on four GPUs."""
    set_gpus(monkeypatch, 4)
    clean = partial(trial_result, outcome=Outcome.CLEAN, expected=None, reason="because")
    monkeypatch.setattr(trials, "grade_trial", lambda _, __, variant: (clean(variant), None))
    composed = command_line.compose(
        ["scenario=bf16_clip", "variant=[buggy,fixed]", f"runs={tmp_path}"]
    )
    console = terminal(io.StringIO())
    with ExitStack() as resources, Pool() as pool:
        progress, scenario = Progress(console), catalog.scenario("bf16_clip")
        yield Job(composed, scenario, cache, console, progress, resources, pool, threading.Event())


def run_all(job: Job) -> None:
    record: dict[str, Any] = {"trials": {"buggy": {}, "fixed": {}}}
    trials.run_all(job, prepared(job, Lane.GPU), RunFolder(Path(), record))


def prepared(job: Job, lane: Lane) -> Prepared:
    stack = Stack({}, "2026-01-01", *here())
    return Prepared(lane, dict.fromkeys(job.config.variants, stack), {}, {})


def test_trials_run_at_once_on_different_gpus(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    monkeypatch.setattr(trials, "_run_launches", launches)
    run_all(job)
    assert sorted(launches.gpus["buggy"] + launches.gpus["fixed"]) == ["0", "1", "2", "3"]
    assert [len(gpus) for gpus in launches.gpus.values()] == [2, 2]
    output = job.console.file.getvalue()  # type: ignore[attr-defined]
    assert output.index("buggy") < output.index("fixed")


def test_a_trial_that_ends_the_run_ends_the_others(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_run_launches", Launches(fails="buggy"))
    with pytest.raises(Inconclusive, match="no room on the disk"):
        run_all(job)
    assert job.ended.is_set()


@pytest.mark.parametrize(
    ("gpus", "cores", "at_once"), [(4, 1, 2), (2, 8, 1), (3, 8, 1), (0, 4, 2), (0, 2, 1)]
)
def test_the_number_of_trials_at_once_depends_on_gpus_and_cores(
    job: Job, monkeypatch: pytest.MonkeyPatch, gpus: int, cores: int, at_once: int
) -> None:
    set_gpus(monkeypatch, gpus)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    ready = prepared(job, Lane.GPU if gpus else Lane.CPU)
    assert trials.number_at_once(job, ready) == at_once
