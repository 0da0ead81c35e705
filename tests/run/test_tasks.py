"""Tasks without a Slurm: what its commands print, what is sent, and what comes back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.run import slurm
from harness.run.slurm import Lost, Shape, Work
from harness.system.errors import Fault, HarnessError, Unsupported, UserError
from tests.fake_slurm import Slurm, pretended
from tests.slurm_tasks import on, silent

__all__ = ["pretended"]
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        (
            "JobId=5 JobName=a b JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15 NodeList=n1",
            "TIMEOUT",
            "TIMEOUT, TimeLimit, signal 15, on n1",
        ),
        ("JobState=CANCELLED Reason=None ExitCode=0:0 NodeList=(null)", "CANCELLED", "CANCELLED"),
        (
            "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 NodeList=n2",
            "FAILED",
            "FAILED, NonZeroExitCode, exit code 1, on n2",
        ),
        ("", "", "Slurm does not know it any more"),
    ],
)
def test_the_reason_is_read_from_scontrol(
    text: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.CompletedProcess([], 0, text, "")
    monkeypatch.setattr(slurm, "_run", lambda *_: process)
    assert slurm.end_of("5") == (state, words)


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


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_looks_at_the_queue_become_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = Clock(monkeypatch), list[float]()

    def queued(name: str) -> tuple[set[str], str]:
        looks.append(clock.now)
        if clock.now > 4600:
            (tmp_path / slurm.result_file("7")).write_bytes(b"\x80\x04\x8c\x07successK\x01\x86.")
        return {"7"}, ""

    monkeypatch.setattr(slurm, "queued", queued)
    assert list(slurm._ended(["7"], tmp_path, "a")) == [("7", 1)]
    assert 240 < len(looks) < 300  # in an hour


def test_a_controller_that_is_away_for_long_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(slurm, "queued", lambda name: (None, "connect failure"))
    with pytest.raises(slurm.Unreachable, match="connect failure"):
        list(slurm._ended(["7"], tmp_path, "a"))
    assert slurm.SILENT < clock.now - 1000 < slurm.SILENT + 20


def test_the_folder_is_private_as_results_are_unpickled(cache: Path) -> None:
    folder = slurm.home()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(Fault, match="is not private"):
        slurm.home()


def test_the_folders_of_killed_commands_are_deleted_after_a_week(pretended: Slurm) -> None:
    old, young = slurm.home() / "old", slurm.home() / "young"
    for folder in (old, young):
        folder.mkdir()
    past = time.time() - slurm.KEPT - 60
    os.utime(old, (past, past))
    results_of(tasks(1))
    assert [old.exists(), young.exists()] == [False, True]


def double(number: int) -> int:
    return 2 * number


def tasks(*numbers: int, cores: int = 1) -> list[Work]:
    return [Work(n, Shape(cores, 0)) for n in numbers]


def results_of(works: Sequence[Work], **changes: Any) -> dict[int, Any]:
    return dict(slurm.results(works, double, on(**changes), silent))


def test_each_task_gives_its_value(pretended: Slurm) -> None:
    assert results_of(tasks(3, 4, 5)) == {0: 6, 1: 8, 2: 10}
    assert [arguments for arguments, _ in pretended.submitted] == [[3, 4, 5]]
    assert list(slurm.home().iterdir()) == []


def test_arrays_have_one_shape_and_are_not_too_large(pretended: Slurm) -> None:
    results_of([*tasks(1, 2, 3, 4), *tasks(5, 6, cores=4)], array=3)
    submitted = [(arguments, shape.cores) for arguments, shape in pretended.submitted]
    assert submitted == [([5, 6], 4), ([1, 2, 3], 1), ([4], 1)]


def test_a_lost_task_is_a_fault_with_slurms_reason(pretended: Slurm) -> None:
    pretended.lose = {2}
    outcomes = results_of(tasks(1, 2))
    assert outcomes[0] == 2
    assert isinstance(outcomes[1], Lost)
    assert str(outcomes[1]).startswith("lost: Slurm task 1_1: NODE_FAIL, 1_1; it wrote no log")


def test_half_a_result_is_no_result_yet(pretended: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looks = slurm.result, []

    def slowly(file: Path) -> tuple[Any] | None:
        looks.append(file)
        if len(looks) < 3:
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            half = read(file)
            file.write_bytes(whole)
            return half
        return read(file)

    monkeypatch.setattr(slurm, "result", slowly)
    pretended.queued = {"1_0"}
    assert results_of(tasks(4)) == {0: 8}
    assert len(looks) == 3


@pytest.mark.parametrize("cancels", [True, False])
def test_leaving_early_cancels_what_has_not_ended_or_names_it(
    pretended: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: Capture, cancels: bool
) -> None:
    pretended.lose, pretended.queued = {2}, {"1_1"}
    if not cancels:
        monkeypatch.setattr(slurm, "cancel", lambda name: False)
    lines = list[str]()
    submitted = slurm.results(tasks(1, 2), double, on(), lines.append)
    assert next(submitted) == (0, 2)
    (folder,) = slurm.home().iterdir()
    submitted.close()
    name = f"distributed-bugs-{folder.name}"
    assert lines == [f"{ended} of 2 tasks ended; jobs {name}" for ended in (0, 1)]
    assert pretended.cancelled == ([name] if cancels else [])
    assert folder.exists() is not cancels
    assert (f"not cancelled: scancel --name={name}" in capsys.readouterr().err) is not cancels


def test_without_slurm_one_line_says_what_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"is not on the PATH|needs the package submitit"):
        results_of(tasks(1))
