"""Cells and runs as tasks for Slurm, without a Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs.api.spec import Lane
from harness.bugs.results import Status
from harness.run import cells, command_line, executor, slurm, suite
from harness.run.run_config import RunConfig
from harness.run.slurm import Lost, Work
from harness.system import machine, store
from harness.system.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from harness.system.files import ROOT
from harness.system.terminal import terminal
from tests.made_up import Upstream
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]
SWEEP = ("matrix", "scenario=rope_zero_init", "pins.transformers=4.36:4.38", "on=slurm")
ON_SLURM = command_line.compose(["scenario=rope_zero_init", "variant=released", "on=slurm"])


def together(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[RunConfig, Any], Any] = lambda _, v: v
) -> list[str]:
    """Let tasks run in this process; returns the releases that were submitted."""
    sent: list[str] = []

    def in_this_process(
        works: Sequence[Work], do: Callable[[Any], Any], *_: object
    ) -> Iterator[tuple[int, Any]]:
        for index, work in enumerate(works):
            sent.append(work.argument.pins.get("transformers", work.argument.scenario))
            try:
                value = do(work.argument)
            except HarnessError as error:
                value = error
            yield index, change(work.argument, value)

    monkeypatch.setattr(slurm, "results", in_this_process)
    monkeypatch.setattr(executor, "make_overlay", lambda *_: None)
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
    lose = lambda *_: Lost("lost: Slurm task 3: NODE_FAIL")  # noqa: E731
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

    monkeypatch.setattr(executor, "make_overlay", no_wheel)
    configs = [replace(ON_SLURM, pins={"transformers": r}) for r in ("4.37.0", "4.38.0")]
    cell_of = dict(executor.find_all(configs))
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
    assert list(executor.find_all([ON_SLURM], failed=note)) == []
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


def test_runs_come_with_their_output(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    together(monkeypatch)
    base = command_line.compose(["scenario=bf16_clip", "on=slurm"])
    other = command_line.compose(["scenario=sampler_shards", "on=slurm"])

    def run_in_block(config: RunConfig) -> tuple[str, suite.Done]:
        refusal = suite.not_run(config.scenario, Unsupported("because"), terminal())
        return f"the block of {config.scenario}\n", refusal

    monkeypatch.setattr(suite, "run_in_block", run_in_block)
    runs = dict(executor.side_by_side([base, other], terminal()))
    assert [runs[index].result.scenario for index in range(2)] == ["bf16_clip", "sampler_shards"]
    assert "the block of bf16_clip" in capsys.readouterr().out


def test_the_combinations_of_a_sweep_go_together(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sent = together(monkeypatch)
    refusal = suite.not_run("bf16_clip", Unsupported("because"), terminal())
    monkeypatch.setattr(suite, "run_in_block", lambda config: (f"seed {config.seed}\n", refusal))
    assert main(["run", "--multirun", "scenario=bf16_clip", "seed=3,4", "on=slurm"]) == 0
    out = capsys.readouterr().out
    assert sent == ["bf16_clip"] * 2
    assert all(seed in out for seed in ("seed 3", "seed 4", "2 scenarios in"))


def test_a_run_folder_that_is_not_here_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    base = command_line.compose(["scenario=bf16_clip", "on=slurm"])
    ended = replace(suite.not_run("bf16_clip", Inconclusive(""), terminal()), folder=gone)
    together(monkeypatch)
    monkeypatch.setattr(suite, "run_in_block", lambda config: ("", ended))
    ((_, refusal),) = executor.side_by_side([base], terminal())
    assert "is not here: name runs=DIR that all nodes see" in refusal.result.reasons[0]


@pytest.mark.parametrize(
    ("words", "shape", "lane"),
    [
        ([], (2, 0), Lane.CPU),
        (["launch.threads=3"], (6, 0), Lane.CPU),
        (["lane=gpu"], (2, 2), Lane.GPU),
        (["on.gpus=4"], (2, 4), Lane.GPU),
        (["on.cpus=9"], (9, 0), Lane.CPU),
    ],
)
def test_a_task_gets_a_core_for_each_thread_and_a_gpu_for_each_rank(
    words: list[str], shape: tuple[int, ...], lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ())  # this machine has none, but nodes do
    composed = command_line.compose(["scenario=bf16_clip", "variant=buggy", "on=slurm", *words])
    assert (executor.shape(composed), cells.lane_of(composed)) == (shape, lane)


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


def test_the_folder_is_private_as_results_are_unpickled(cache: Path) -> None:
    folder = slurm.home()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(Fault, match="is not private"):
        slurm.home()


def test_the_folders_of_killed_commands_are_deleted_after_a_week(cache: Path) -> None:
    old, young = slurm.home() / "old", slurm.home() / "young"
    for folder in (old, young):
        folder.mkdir()
    past = time.time() - slurm.KEPT - 60
    os.utime(old, (past, past))
    slurm.delete_old(slurm.home())
    assert [old.exists(), young.exists()] == [False, True]


def test_without_slurm_one_line_says_what_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(executor, "make_overlays", lambda _: {})
    monkeypatch.setenv("PATH", str(tmp_path))
    complaint = refused(capsys, ["run", "scenario=bf16_clip", "on=slurm"], code=4)
    assert "needs Slurm's commands" in complaint or "needs the package submitit" in complaint


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
