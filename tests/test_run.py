"""What a run writes down before anything is launched."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import catalog, config, machine
from harness.errors import Inconclusive
from harness.files import sha256
from harness.report import Progress, terminal
from harness.results import TrialResult
from harness.spec import Lane, Outcome
from harness.trial import run
from harness.trial.server_pool import Pool
from harness.upstream.overlay import Overlay


def test_a_file_with_the_bug_may_be_missing_of_a_release_as_published_alone(tmp_path: Path) -> None:
    scenario = catalog.scenario("tied_resume_weight")
    there, missing = sorted(defect.file for defect in scenario.defects)
    lent = Overlay("key", tmp_path / "site", "", "")
    file = lent.site / there
    file.parent.mkdir(parents=True)
    file.write_text("released\n")
    # Grading finds no rank that loaded a file without a hash, and the trial proves nothing.
    assert run._watched(scenario, "fixed", lent) == {there: sha256(file), missing: ""}
    assert run._watched(scenario, "released", lent) == {there: sha256(file)}


class Launches:
    """Stands in for the launch of a trial's launches: notes the GPUs that each was lent."""

    def __init__(self, together: int) -> None:
        self.together = threading.Barrier(together, timeout=10)
        self.lent: dict[str, list[str]] = {}
        self.fails = ""

    def __call__(self, job: run.Job, variant: str, devices: list[str]) -> None:
        self.lent[variant] = list(devices)
        self.together.wait()  # breaks unless so many run at once
        if variant == self.fails:
            raise Inconclusive("no room on the disk")
        while self.fails:
            run._say(job, "running")
            time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[run.Job]:
    """A run of bf16_clip that is about to launch its trials, two ranks each, on four GPUs."""
    gpus = tuple(machine.Gpu(str(n), f"GPU-{n}", "H200") for n in range(4))
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    monkeypatch.setattr(run, "grade_trial", _graded)
    asked = config.compose(["scenario=bf16_clip", "variant=[buggy,fixed]", f"runs={tmp_path}"])
    console = terminal(io.StringIO())
    with ExitStack() as kept, Pool() as pool:
        progress, told = Progress(console), catalog.scenario("bf16_clip")
        job = run.Job(asked, told, cache, console, progress, kept, pool, threading.Event())
        job.lane, job.record = Lane.GPU, {"trials": {"buggy": {}, "fixed": {}}}
        yield job


def _graded(record: object, folder: Path, variant: str) -> tuple[TrialResult, None]:
    return TrialResult(variant, Outcome.CLEAN, None, "because"), None


def test_variants_run_side_by_side_on_gpus_of_their_own(
    job: run.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(together=2)
    monkeypatch.setattr(run, "_launch_all", launches)
    run.launch_trials(job)
    assert sorted(launches.lent["buggy"] + launches.lent["fixed"]) == ["0", "1", "2", "3"]
    assert [len(lent) for lent in launches.lent.values()] == [2, 2]
    told = job.console.file.getvalue()  # type: ignore[attr-defined]
    assert told.index("buggy") < told.index("fixed")


def test_a_trial_that_ends_the_run_ends_the_others(
    job: run.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(together=2)
    launches.fails = "buggy"
    monkeypatch.setattr(run, "_launch_all", launches)
    with pytest.raises(Inconclusive, match="no room on the disk"):
        run.launch_trials(job)
    assert job.ended.is_set()


@pytest.mark.parametrize(
    ("gpus", "cores", "at_once"), [(4, 1, 2), (2, 8, 1), (3, 8, 1), (0, 4, 2), (0, 2, 1)]
)
def test_as_many_trials_run_at_once_as_there_is_room_for(
    job: run.Job, monkeypatch: pytest.MonkeyPatch, gpus: int, cores: int, at_once: int
) -> None:
    there = tuple(machine.Gpu(str(n), f"GPU-{n}", "H200") for n in range(gpus))
    monkeypatch.setattr(machine, "gpus", lambda: there)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    job.lane = Lane.GPU if gpus else Lane.CPU
    assert run._at_once(job) == at_once
