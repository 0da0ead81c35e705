"""Batches of tasks without a Slurm: what its commands print, what is sent, and what comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.run import batch, slurm
from harness.run.batch import Batch, Lost, Work
from harness.run.slurm import End, Shape, Waiting
from harness.system.errors import Fault, HarnessError, Unsupported, UserError
from tests.fake_slurm import Slurm, pretended
from tests.slurm_tasks import on, silent

__all__ = ["pretended"]
Capture = pytest.CaptureFixture[str]


def test_the_queue_is_read_from_squeue() -> None:
    text = (
        "12_0 RUNNING None\n12_3 PENDING Nodes required for job are DOWN\n\nnonsense\n7 PENDING\n"
    )
    assert slurm.tasks_of(text) == {
        "12_0": Waiting("RUNNING", "None"),
        "12_3": Waiting("PENDING", "Nodes required for job are DOWN"),
        "7": Waiting("PENDING", ""),
    }


@pytest.mark.parametrize(
    ("text", "end", "by_slurm"),
    [
        (
            "JobId=5 JobName=a b JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15 NodeList=n1",
            End("TIMEOUT", "TIMEOUT, TimeLimit, signal 15, on n1"),
            True,
        ),
        (
            "JobState=CANCELLED Reason=None ExitCode=0:0 NodeList=(null)",
            End("CANCELLED", "CANCELLED"),
            True,
        ),
        (
            "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 NodeList=n2",
            End("FAILED", "FAILED, NonZeroExitCode, exit code 1, on n2"),
            False,  # it may have left a result
        ),
        ("", End("", "Slurm does not know it any more"), False),
    ],
)
def test_the_reason_is_read_from_scontrol(text: str, end: End, by_slurm: bool) -> None:
    assert (slurm.end_in(text), slurm.end_in(text).by_slurm) == (end, by_slurm)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("sbatch: error: invalid partition specified: nowhere", UserError),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", slurm.Unreachable),
        ("sbatch: error: Socket timed out on send/recv operation", slurm.Unreachable),
    ],
)
def test_a_refusal_is_a_mistake_unless_the_controller_is_away(
    message: str, kind: type[HarnessError]
) -> None:
    refused = slurm._refused(message)
    assert type(refused) is kind
    assert "\n" not in str(refused)


def test_looks_at_the_queue_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(slurm, "_queued", lambda names: ({}, ""))
    queue = slurm.Queue(_begun=clock[0])
    for _ in range(36_000):
        queue.look("a")
        clock[0] += 0.1
    assert 240 < queue.looks < 300  # in an hour


def test_a_controller_that_is_away_for_long_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(slurm, "_queued", lambda name: (None, "connect failure"))
    queue = slurm.Queue(_answered=clock[0])
    assert queue.look("a") is None
    clock[0] += slurm.SILENT + 20
    with pytest.raises(slurm.Unreachable, match="connect failure"):
        queue.look("a")


def test_the_folder_is_private_as_results_are_unpickled(cache: Path) -> None:
    folder = batch.home()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(Fault, match="is not private"):
        batch.home()


def test_the_folders_of_killed_commands_are_deleted_after_a_week(pretended: Slurm) -> None:
    old, young = batch.home() / "old", batch.home() / "young"
    for folder in (old, young):
        folder.mkdir()
    past = time.time() - batch.KEPT - 60
    os.utime(old, (past, past))
    results_of(tasks(1))
    assert [old.exists(), young.exists()] == [False, True]


def double(number: int) -> int:
    return 2 * number


def tasks(*numbers: int, cores: int = 1) -> list[Work]:
    return [Work(n, Shape(cores, 0)) for n in numbers]


def results_of(works: Sequence[Work], **changes: Any) -> dict[int, Any]:
    with Batch(works, double, on(**changes), silent) as submitted:
        return dict(submitted.results())


def test_each_task_gives_its_value(pretended: Slurm) -> None:
    assert results_of(tasks(3, 4, 5)) == {0: 6, 1: 8, 2: 10}
    assert [arguments for _, arguments, _, _ in pretended.submitted] == [[3, 4, 5]]
    assert list(batch.home().iterdir()) == []


def test_arrays_have_one_shape_and_are_no_larger_than_slurm_accepts(pretended: Slurm) -> None:
    pretended.largest = 3
    results_of([*tasks(1, 2, 3, 4), *tasks(5, 6, cores=4)], most=100)
    submitted = [(arguments, shape.cores) for _, arguments, shape, _ in pretended.submitted]
    assert submitted == [([5, 6], 4), ([1, 2, 3], 1), ([4], 1)]


def test_a_lost_task_is_submitted_once_more_and_then_lost(pretended: Slurm) -> None:
    pretended.lose = {2}
    outcomes = results_of(tasks(1, 2))
    assert outcomes[0] == 2
    assert isinstance(outcomes[1], Lost)
    assert str(outcomes[1]).startswith("lost 2 times: Slurm task 2: NODE_FAIL, 2; it wrote no log")
    assert [arguments for _, arguments, _, _ in pretended.submitted] == [[1, 2], [2]]


def test_half_a_result_is_no_result_yet(pretended: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looks = slurm.result, []

    def slowly(file: Path) -> tuple[bool, Any] | None:
        looks.append(file)
        if len(looks) < 3:
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            half = read(file)
            file.write_bytes(whole)
            return half
        return read(file)

    monkeypatch.setattr(slurm, "result", slowly)
    pretended.queued = {"1": Waiting("RUNNING", "")}
    assert results_of(tasks(4)) == {0: 8}
    assert len(looks) == 3


def test_leaving_early_cancels_what_has_not_ended(pretended: Slurm) -> None:
    pretended.lose = {2}
    pretended.queued = {"1_1": Waiting("RUNNING", "")}
    with Batch(tasks(1, 2), double, on(), silent) as submitted:
        assert next(submitted.results()) == (0, 2)
        (folder,) = batch.home().iterdir()
    assert pretended.cancelled == [f"distributed-bugs-{folder.name}"]
    assert not folder.exists()


def test_what_cannot_be_cancelled_is_named_and_kept(
    pretended: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pretended.lose = {2}
    monkeypatch.setattr(slurm, "cancel", lambda name: False)
    with Batch(tasks(1, 2), double, on(), silent):
        (folder,) = batch.home().iterdir()
    assert (
        f"not cancelled: scancel --name=distributed-bugs-{folder.name}" in capsys.readouterr().err
    )
    assert folder.exists()


def test_the_progress_says_how_many_and_why_they_wait(pretended: Slurm) -> None:
    pretended.lose = {2, 3}
    pretended.queued = {
        "1_1": Waiting("PENDING", "Priority"),
        "1_2": Waiting("PENDING", "Resources"),
    }
    lines: list[str] = []
    with Batch(tasks(1, 2, 3), double, on(), lines.append) as submitted:
        next(submitted.results())
        for state in ("RUNNING", "PENDING"):
            pretended.queued["1_1"] = Waiting(state, "Resources")
            submitted.queue._next = 0.0
            submitted._look()
    assert lines[0].startswith("1 queued, 1 running, 1 ended")
    assert lines[1].startswith("2 queued (Resources), 0 running, 1 ended")


def test_without_slurm_one_line_says_what_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"is not on the PATH|needs the package submitit"):
        slurm.submit(double, [1], on(), Shape(1, 0), name="a", folder=tmp_path, at_once=1)
