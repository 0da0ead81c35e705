"""Several scenarios in one command: their order, their table, their exit code, their GPUs."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.spec import Lane, Outcome, Verdict
from harness.bugs.results import RunResult
from harness.rank.run_folder import RUN_FILE
from harness.run import command_line, executor, suite
from harness.run.run_config import RunConfig
from harness.run.server_pool import Pool
from harness.system.errors import Inconclusive
from harness.system.files import write_json
from harness.system.machine import leased
from harness.system.terminal import terminal
from tests.made_up import set_gpus, trial_result

Capture = pytest.CaptureFixture[str]


class Pretence:
    """Stands in for ``run``: returns a verdict by scenario, and lists the runs in their order."""

    def __init__(self, verdicts: dict[str, Verdict], folder: Path) -> None:
        self.verdicts, self.folder = verdicts, folder
        self.order: list[str] = []
        self.ahead: list[str] = []
        self.together = threading.Barrier(len(verdicts), timeout=5)
        self.wait = False

    def __call__(self, config: RunConfig, console: Console, *_: object) -> tuple[RunResult, Path]:
        self.order.append(config.scenario)
        if self.wait:
            self.together.wait()  # breaks unless all of them run at once
        verdict = self.verdicts[config.scenario]
        console.print(f"printed by {config.scenario}")
        if verdict is Verdict.INCONCLUSIVE:
            raise Inconclusive("no network")
        folder = self.folder / config.scenario
        folder.mkdir()
        trial = {"pins": {"deepspeed": "0.19.8"}}
        write_json(folder / RUN_FILE, {"lane": Lane.CPU, "trials": {"buggy": trial}})
        outcome = Outcome.UNSUPPORTED if verdict is Verdict.UNSUPPORTED else Outcome.SYMPTOM
        result = trial_result("buggy", outcome, Outcome.SYMPTOM, "because")
        return RunResult(config.scenario, verdict, (), (result,)), folder


def several(
    monkeypatch: pytest.MonkeyPatch, widths: dict[str, int], **changes: Any
) -> list[RunConfig]:
    """Configs of made-up scenarios with these numbers of ranks."""
    base = command_line.compose(["scenario=bf16_clip", "variant=buggy"])
    scenario = lambda name: SimpleNamespace(ranks_of=lambda _: widths[name])  # noqa: E731
    monkeypatch.setattr(catalog, "scenario", scenario)
    return [replace(base, scenario=name, **changes) for name in widths]


def pretend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdicts: dict[str, Verdict]
) -> Pretence:
    pretence = Pretence(verdicts, tmp_path)
    monkeypatch.setattr(suite, "run", pretence)
    prepared = lambda config, pool: pretence.ahead.append(config.scenario)  # noqa: E731
    monkeypatch.setattr(suite, "prepared", prepared)
    monkeypatch.setattr(suite, "make_overlay", lambda *_: None)
    set_gpus(monkeypatch, 0)
    return pretence


def test_all_means_every_scenario_with_its_own_params() -> None:
    chosen = command_line.selected(["scenario=all", "seed=4"])
    assert [c.scenario for c in chosen] == list(catalog.names())
    assert all(isinstance(c.params, catalog.scenario(c.scenario).params) for c in chosen)
    assert f"scenario={chosen[0].scenario} seed=4" in chosen[0].command


@pytest.mark.parametrize(("gpus", "order"), [(0, "abc"), (4, "bca")])
def test_they_run_in_an_order_and_end_with_one_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture, gpus: int, order: str
) -> None:
    """On GPUs the widest scenario runs first."""
    pretence = pretend(monkeypatch, tmp_path, dict.fromkeys("abc", Verdict.REPRODUCED))
    set_gpus(monkeypatch, gpus)
    configs = several(monkeypatch, {"a": 1, "b": 4, "c": 2}, jobs=1)
    assert executor.run_selected(configs) == 0
    assert "".join(pretence.order) == order
    assert "".join(pretence.ahead) == order[1:]
    table = capsys.readouterr().out.partition("scenario")[2]
    rows = [line.split() for line in table.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert all("deepspeed 0.19.8" in " ".join(row) and row[-1] == "reproduced" for row in rows)


@pytest.mark.parametrize(
    ("verdict", "strict", "code"),
    [
        (Verdict.REPRODUCED, False, 0),
        (Verdict.UNSUPPORTED, False, 0),
        (Verdict.UNSUPPORTED, True, 4),
        (Verdict.NOT_REPRODUCED, False, 1),
        (Verdict.INCONCLUSIVE, False, 3),
    ],
)
def test_the_exit_code_is_the_worst_and_unsupported_counts_only_if_strict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: Verdict, strict: bool, code: int
) -> None:
    pretend(monkeypatch, tmp_path, {"a": Verdict.REPRODUCED, "b": verdict})
    assert executor.run_selected(several(monkeypatch, {"a": 1, "b": 1}, strict=strict)) == code


def test_jobs_run_side_by_side_and_their_output_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    pretence = pretend(monkeypatch, tmp_path, dict.fromkeys("ab", Verdict.REPRODUCED))
    pretence.wait = True
    assert executor.run_selected(several(monkeypatch, {"a": 1, "b": 1}, jobs=2)) == 0
    out = capsys.readouterr().out
    assert "printed by a" in out
    assert "printed by b" in out


class Waits(Exception):
    """Raised by a lease that would have to wait."""


def wait() -> None:
    raise Waits


def test_a_gpu_is_leased_by_one_run_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_gpus(monkeypatch, 4)
    with leased(2, tmp_path, wait) as pair, leased(1, tmp_path, wait) as second:
        assert len({gpu.uuid for gpu in (*pair, *second)}) == 3
        with pytest.raises(Waits), leased(2, tmp_path, wait):
            pass
        with leased(1, tmp_path, wait) as third:  # the failed attempt has kept nothing
            assert not set(third) & {*pair, *second}
    with leased(4, tmp_path, wait) as everything:
        assert len(everything) == 4


def test_a_wide_run_that_waits_is_not_overtaken_by_narrow_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_gpus(monkeypatch, 2)
    tries: list[str] = []

    def narrow_one_tries() -> None:
        tries.append("narrow")
        with leased(1, tmp_path, wait):  # a GPU is free, but it is not its turn
            pass

    single, both = leased(1, tmp_path, wait), leased(2, tmp_path, narrow_one_tries)
    with single, pytest.raises(Waits), both:
        pass
    assert tries == ["narrow"]


def test_leaving_early_ends_the_runs_that_were_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, started, ended = threading.Event(), set[str](), set[str]()

    def endless(config: RunConfig, console: Console, stop: threading.Event, pool: Pool) -> Any:
        started.add(config.scenario)
        if config.scenario == "a":
            assert begun.wait(timeout=30)
            return RunResult("a", Verdict.REPRODUCED, (), ()), tmp_path
        begun.set()
        assert stop.wait(timeout=30)
        ended.add(config.scenario)
        raise KeyboardInterrupt

    pretend(monkeypatch, tmp_path, {"a": Verdict.REPRODUCED})
    monkeypatch.setattr(suite, "run", endless)
    configs = several(monkeypatch, dict.fromkeys("abcd", 1), jobs=2)
    with closing(executor.side_by_side(configs, terminal())) as runs:
        assert next(runs)[0] == 0
    assert "b" in ended
    assert started - ended == {"a"}
    assert "d" not in started


def test_the_cpu_lane_runs_one_at_a_time_also_on_a_machine_with_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = several(monkeypatch, {"a": 1, "b": 1})
    set_gpus(monkeypatch, 4)
    assert suite.jobs_of(configs) == 4
    on_cpu = [replace(c, launch=replace(c.launch, lane="cpu")) for c in configs]
    assert suite.jobs_of(on_cpu) == 1
