"""Tasks for Slurm without a Slurm: what is sent, what comes back, notes, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs.api.spec import Lane
from harness.bugs.results import Status
from harness.models import tasks as of_models
from harness.models.answers import Asking, ask
from harness.models.stack import Releases
from harness.rank.models.answer import AnswerStatus as Answered
from harness.run import batch, cells, cluster, command_line, executor, slurm, suite
from harness.run.batch import Batch, Lost, Work
from harness.run.run_config import RunConfig
from harness.run.slurm import End, Shape, Waiting
from harness.system import machine, store
from harness.system.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from harness.system.files import ROOT
from harness.system.terminal import terminal
from tests import made_models
from tests.made_up import Upstream
from tests.sandbox import refused
from tests.slurm_tasks import on, silent

Capture = pytest.CaptureFixture[str]
SWEEP = ("matrix", "scenario=rope_zero_init", "pins.transformers=4.36:4.38", "on=slurm")
ON_SLURM = command_line.compose(["scenario=rope_zero_init", "variant=released", "on=slurm"])


# What Slurm's commands print.


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


# The folder of a command.


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


# A batch, with a Slurm in this process.


class Slurm:
    """Stands in for Slurm: what was submitted, and what is in the queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.submitted: list[tuple[str, list[Any], Shape, int]] = []
        self.queued: dict[str, Waiting] = {}
        self.cancelled: list[str] = []
        self.allowed: list[tuple[str, int]] = []
        self.largest = 1001
        self.lose: Container[Any] = ()
        """The arguments of tasks that Slurm loses."""
        monkeypatch.setattr(slurm, "submit", self.submit)
        monkeypatch.setattr(slurm, "largest_array", lambda: self.largest)
        monkeypatch.setattr(slurm, "submitit", lambda: None)
        monkeypatch.setattr(slurm, "_queued", lambda name: (dict(self.queued), ""))
        monkeypatch.setattr(slurm, "cancel", self.cancel)
        monkeypatch.setattr(slurm, "allow", lambda job, n: self.allowed.append((job, n)))
        monkeypatch.setattr(slurm, "end_of", lambda task: End("NODE_FAIL", f"NODE_FAIL, {task}"))
        for name, value in (("POLL", 0.0), ("SETTLE", 0.0)):
            monkeypatch.setattr(batch, name, value)
        monkeypatch.setattr(slurm, "SOON", 0.0)

    def cancel(self, name: str) -> bool:
        self.cancelled.append(name)
        return True

    def submit(
        self,
        do: Callable[[Any], Any],
        arguments: Sequence[Any],
        on: object,
        shape: Shape,
        *,
        folder: Path,
        at_once: int,
        **_: object,
    ) -> str:
        import pickle

        job = str(len(self.submitted) + 1)
        self.submitted.append((job, list(arguments), shape, at_once))
        for number, argument in enumerate(arguments):
            name = f"{job}_{number}" if len(arguments) > 1 else job
            if argument not in self.lose:
                content = pickle.dumps(("success", do(argument)))
                (folder / slurm.result_file(name)).write_bytes(content)
        return job


@pytest.fixture
def pretended(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


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


# Cells and runs.


def together(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[RunConfig, Any], Any] = lambda _, v: v
) -> list[str]:
    """Let tasks run in this process; returns the releases that were submitted."""
    sent: list[str] = []

    class InThisProcess:
        def __init__(self, works: Sequence[Work], do: Any, *_: object) -> None:
            self.works, self.do = works, do

        def __enter__(self) -> InThisProcess:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def results(self) -> Iterator[tuple[int, Any]]:
            for index, work in enumerate(self.works):
                sent.append(work.argument.pins.get("transformers", work.argument.scenario))
                yield index, change(work.argument, self.do(work.argument))

    monkeypatch.setattr(cluster, "Batch", InThisProcess)
    monkeypatch.setattr(cluster, "make_overlay", lambda *_: None)
    monkeypatch.setattr(cluster, "end_with_a_signal", lambda: None)
    return sent


def test_a_matrix_sends_only_cells_that_are_not_stored(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sent = together(monkeypatch)
    assert main([*SWEEP[:2], "pins.transformers=4.37.0,4.38.0"]) == 0
    assert main([*SWEEP]) == 0
    assert sorted(sent) == ["4.36.2", "4.37.2", "4.38.2"]
    assert "5 cells: 3 affected, 2 not affected (2 stored)" in capsys.readouterr().out
    assert main([*SWEEP, "--again"]) == 0
    assert len(sent) == 8


def test_a_lost_task_is_an_inconclusive_cell_and_is_not_stored(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    lose = lambda *_: Lost("lost 2 times: Slurm task 3: NODE_FAIL")  # noqa: E731
    together(monkeypatch, lose)
    monkeypatch.setattr(store, "write", lambda *_: None)
    assert main([*SWEEP]) == 3
    out = capsys.readouterr().out
    assert "5 cells: 5 inconclusive" in out
    assert "Slurm task 3: NODE_FAIL" in out
    assert "affected  [" not in out


def test_what_has_no_overlay_is_not_sent_as_a_node_would_give_another_reason(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = together(monkeypatch)

    def no_wheel(config: RunConfig, *_: object) -> None:
        if config.pins["transformers"] == "4.37.0":
            raise Unsupported("no wheel")

    monkeypatch.setattr(cluster, "make_overlay", no_wheel)
    configs = [replace(ON_SLURM, pins={"transformers": r}) for r in ("4.37.0", "4.38.0")]
    cell_of = dict(cluster.find_all(configs))
    assert (cell_of[0].status, cell_of[0].reason) == (Status.UNSUPPORTED, "no wheel")
    assert cell_of[1].status is Status.NOT_AFFECTED
    assert sent == ["4.38.0"]


@pytest.mark.parametrize("error", [Fault("full"), Lost("gone"), UserError("no such release")])
def test_faults_are_reported_instead_of_a_cell_if_the_caller_wants_them(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, error: HarnessError
) -> None:
    together(monkeypatch, lambda *_: error)
    failed: list[Any] = []
    note = lambda *found: failed.append(found)  # noqa: E731
    assert list(cluster.find_all([ON_SLURM], failed=note)) == []
    assert failed == [(0, error)]


def test_a_mistake_that_only_a_run_finds_ends_the_command(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    upstream.error = UserError("pins.transformers=4.37: write 4.37.0")
    together(monkeypatch)
    assert "write 4.37.0" in refused(capsys, [*SWEEP])


@pytest.mark.parametrize("apart", [[], ["--apart", "1"]])
def test_bisect_tests_every_nth_release_together(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture, apart: list[str]
) -> None:
    sent = together(monkeypatch)
    assert main(["bisect", *SWEEP[1:], *apart]) == 0
    assert (
        "flips from affected to not affected between 4.37.2 and 4.38.0" in capsys.readouterr().out
    )
    assert len(sent) == len(set(sent)), "a release was sent twice"


def test_runs_come_with_their_output_and_a_broken_scenario_is_one_of_them(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    together(monkeypatch)
    base = command_line.compose(["scenario=bf16_clip", "on=slurm"])
    broken = replace(base, scenario="broken", params=None, pins={})

    def run_in_block(config: RunConfig) -> tuple[str, suite.Done]:
        refusal = suite.not_run(config.scenario, Unsupported("because"), terminal())
        return f"the block of {config.scenario}\n", refusal

    monkeypatch.setattr(suite, "run_in_block", run_in_block)
    runs = dict(executor.side_by_side([base, broken], terminal()))
    assert [runs[index].result.scenario for index in range(2)] == ["bf16_clip", "broken"]
    assert "the block of bf16_clip" in capsys.readouterr().out


def test_the_combinations_of_a_sweep_go_together(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    together(monkeypatch)
    counts: list[int] = []
    run_all = cluster.run_all

    def noted(configs: Sequence[RunConfig], console: Any) -> Iterator[tuple[int, suite.Done]]:
        counts.append(len(configs))
        return run_all(configs, console)

    monkeypatch.setattr(cluster, "run_all", noted)
    refusal = suite.not_run("bf16_clip", Unsupported("because"), terminal())
    monkeypatch.setattr(suite, "run_in_block", lambda config: (f"seed {config.seed}\n", refusal))
    words = ["--multirun", "scenario=bf16_clip", "seed=3,4", f"hydra.sweep.dir={tmp_path}"]
    assert main(["run", *words, "on=slurm"]) == 0
    out = capsys.readouterr().out
    assert counts == [2]
    assert all(seed in out for seed in ("seed 3", "seed 4", "2 scenarios in"))


def test_models_are_parts_of_one_task_each_and_a_lost_part_is_sent_again(
    pretended: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_models, "end_with_a_signal", lambda: None)
    monkeypatch.setattr(of_models, "PART", 1)
    models = [f"{made_models.__file__}:{name}" for name in ("make", "make_crashing")]
    asking = Asking(Releases(tmp_path, {}), models, ["loss"])

    def answers() -> list[tuple[Answered, str, bool]]:
        rows = ask(asking, lambda _: None, partial(of_models.rows, on=on(), say=silent))
        return [(row.answer.status, row.answer.reason, row.stored) for row in rows]

    pretended.lose = [replace(asking, models=models[1:], jobs=of_models.CORES)]
    answer, lost_answer = answers()
    assert answer == (Answered.RIGHT, "", False)
    assert lost_answer[0] is Answered.NO_ANSWER
    assert lost_answer[1].startswith("lost 2 times: Slurm task 2: NODE_FAIL")
    pretended.lose, before = (), len(pretended.submitted)
    assert [(status, stored) for status, _, stored in answers()] == [
        (Answered.RIGHT, True),
        (Answered.RIGHT, False),
    ]
    (sent,) = pretended.submitted[before:]
    assert [part.models for part in sent[1]] == [models[1:]]


def test_a_run_folder_that_is_not_here_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    base = command_line.compose(["scenario=bf16_clip", "on=slurm"])
    ended = replace(suite.not_run("bf16_clip", Inconclusive(""), terminal()), folder=gone)
    together(monkeypatch)
    monkeypatch.setattr(suite, "run_in_block", lambda config: ("", ended))
    ((_, refusal),) = cluster.run_all([base], terminal())
    assert "is not here: name runs=DIR that all nodes see" in refusal.result.reasons[0]


@pytest.mark.parametrize(
    ("words", "shape", "lane"),
    [
        ([], Shape(2, 0), Lane.CPU),
        (["launch.threads=3"], Shape(6, 0), Lane.CPU),
        (["lane=gpu"], Shape(2, 2), Lane.GPU),
        (["on.gpus=4"], Shape(2, 4), Lane.GPU),
        (["on.cpus=9"], Shape(9, 0), Lane.CPU),
    ],
)
def test_a_task_gets_a_core_for_each_thread_and_a_gpu_for_each_rank(
    words: list[str], shape: Shape, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())  # this machine has none, but nodes do
    composed = command_line.compose(["scenario=bf16_clip", "variant=buggy", "on=slurm", *words])
    assert (cluster._shape(composed), cells.lane_of(composed)) == (shape, lane)


# Settings.


def test_settings_reach_sbatch(cache: Path) -> None:
    words = [
        "on=slurm",
        "on.partition=gpu",
        "+on.extra.qos=debug",
        "+on.extra.exclusive=true",
        "on.most=3",
    ]
    chosen = command_line.compose(["scenario=bf16_clip", *words]).on
    assert (chosen.partition, chosen.most) == ("gpu", 3)
    assert chosen.extra == {"qos": "debug", "exclusive": True}


def test_without_slurm_one_line_says_what_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match=r"is not on the PATH|needs the package submitit"):
        slurm.submit(double, [1], on(), Shape(1, 0), name="a", folder=tmp_path, at_once=1)


def test_submitit_is_imported_only_to_submit() -> None:
    """Without ``on=slurm`` no command may need this extra package."""
    commands = sorted(path.stem for path in (ROOT / "harness" / "cli").glob("[a-z]*.py"))
    assert commands
    script = (
        f"import importlib, sys\nfor name in {commands}:\n"
        "    importlib.import_module(f'harness.cli.{name}')\n"
        "print([name for name in sys.modules if 'submitit' in name or 'slurm' in name])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
