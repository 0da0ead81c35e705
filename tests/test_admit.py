"""The gate for scenarios, on results that are made up; and the scenario that `new` writes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

import scenarios
from harness.__main__ import main
from harness.commands import admit
from harness.commands.admit import Gate
from harness.errors import UserError
from harness.results import RunResult, TrialResult
from harness.run_config import RunConfig
from harness.spec import Finding, Outcome
from harness.trial import grade
from harness.trial.server_pool import Pool
from harness.upstream import release_days
from tests.recording import Recording

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent
S, C, I, U = Outcome.SYMPTOM, Outcome.CLEAN, Outcome.INCONCLUSIVE, Outcome.UNSUPPORTED  # noqa: E741
GOOD: Mapping[str, Outcome] = {"buggy": S, "fixed": C, "control": C, "reference": C}


class Runs:
    """Stands in for ``run``: the n-th call comes out as said, everything else as it should."""

    def __init__(self, told: Mapping[int, Mapping[str, Outcome]]) -> None:
        self.told = told
        self.asked: list[tuple[tuple[str, ...], int]] = []
        self.steps: Sequence[int] = (1, 1, 1, 1)
        self.alarm = False
        self.cold: list[int] = []

    def __call__(self, asked: RunConfig, console: Console, *, pool: Pool) -> tuple[RunResult, Path]:
        number = len(self.asked)
        self.cold += [] if asked.launch.warm else [number]
        self.asked.append((asked.variants, asked.seed))
        outcomes = {**GOOD, **self.told.get(number, {})}
        trials = [self._trial(v, outcomes[v], self.steps[number]) for v in asked.variants]
        verdict, reasons = grade.judge(trials, lambda: [])
        return RunResult(asked.scenario, verdict, reasons, tuple(trials)), Path()

    def _trial(self, variant: str, outcome: Outcome, step: int) -> TrialResult:
        seen = outcome is S or (self.alarm and variant == "control")
        finding = Finding("wrong", step=step) if seen else None
        return TrialResult(variant, outcome, GOOD[variant], "because", finding=finding)


def admitted(
    monkeypatch: pytest.MonkeyPatch, told: Mapping[int, Mapping[str, Outcome]], **changes: object
) -> tuple[int, Runs]:
    runs = Runs(told)
    for name, value in changes.items():
        setattr(runs, name, value)
    monkeypatch.setattr(admit, "run", runs)
    monkeypatch.setattr(admit, "claimed", lambda _: Gate("exercised", True, ""))
    monkeypatch.setattr(admit, "recorded_alike", lambda _: Gate("alike", True, ""))
    return main(["admit", "scenario=bf16_clip", "seed=3"]), runs


def test_a_scenario_that_always_says_the_same_is_admitted(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    code, runs = admitted(monkeypatch, {})
    assert code == 0
    pair = ("buggy", "fixed")
    assert runs.asked == [(tuple(GOOD), 3), (pair, 3), (pair, 3), (pair, 4)]
    assert runs.cold == [2]
    assert "bf16_clip: admitted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({1: {"buggy": C}}, "flaky: symptom, clean, symptom"),
        ({2: {"buggy": I}}, "flaky: symptom, symptom, inconclusive"),
        ({0: {"buggy": I}, 1: {"buggy": I}, 2: {"buggy": I}}, "inconclusive, inconclusive"),
        ({1: {"fixed": I}}, "flaky: clean, inconclusive, clean"),
        ({0: {"control": S}}, "control symptom, expected clean"),
        ({3: {"buggy": C}}, "not reproduced: buggy: clean, expected symptom"),
        ({3: {"fixed": I}}, "inconclusive: fixed: because"),
    ],
)
def test_one_that_does_not_is_named_and_kept_out(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    told: Mapping[int, Mapping[str, Outcome]],
    why: str,
) -> None:
    code, runs = admitted(monkeypatch, told)
    out = capsys.readouterr().out
    assert code == 1
    assert len(runs.asked) == 4, "nothing is tried again"
    assert any("FAILED" in line and why in line for line in out.splitlines())
    assert "bf16_clip: not admitted" in out


def test_an_alarm_where_nothing_is_wrong_keeps_it_out(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    code, _ = admitted(monkeypatch, {}, alarm=True)
    assert code == 1
    assert "control: wrong" in capsys.readouterr().out


def test_repeats_that_saw_it_at_other_steps_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert admitted(monkeypatch, {}, steps=(1, 2, 1, 1))[0] == 0
    assert "(at steps 1, 2, 1)" in capsys.readouterr().out


def test_what_this_machine_cannot_run_it_cannot_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    assert admitted(monkeypatch, {n: dict.fromkeys(GOOD, U) for n in range(4)})[0] == 4


def refuse(name: str, *_: object) -> None:
    raise UserError(f"no package '{name}' in the index")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["admit"], "KEY=VALUE"),
        (["admit", "scenario=bf16_clip", "variant=buggy"], "remove variant=buggy"),
        (["admit", "scenario=bf16_clop"], "did you mean bf16_clip?"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture, words: list[str], told: str
) -> None:
    monkeypatch.setattr(scenarios, "__path__", [*scenarios.__path__, str(tmp_path)])
    monkeypatch.setattr(release_days, "released", refuse)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_buggys_own_records_with_detect_silenced_are_what_exercised_claims(
    recording: Recording,
) -> None:
    gate = admit.claimed(recording.folder)
    assert gate.passed
    assert gate.why.startswith(
        "no symptom; its trigger occurred: clipping was active in all 10 steps"
    )
    with recording.records("buggy") as records:
        for each in records:
            each.update({"grad_norm": 0.01} if each["kind"] == "step" else {})
    gate = admit.claimed(recording.folder)
    assert not gate.passed
    assert "clipping was active in 0 of 10 steps" in gate.why


def retold(run: Recording, rank: int, **facts: object) -> None:
    """Have a step of the buggy variant say something else, with all digests made anew."""
    with run.records("buggy", rank) as records:
        next(record for record in records if record["kind"] == "step").update(facts)


def three(recording: Recording, tmp_path: Path) -> list[Recording]:
    """The same run three times over."""
    return [Recording(shutil.copytree(recording.folder, tmp_path / name)) for name in "123"]


def test_a_cold_launch_that_records_the_same_is_alike(recording: Recording, tmp_path: Path) -> None:
    """Times are nobody's to repeat."""
    runs = three(recording, tmp_path)
    with runs[2].records("fixed", 1) as records:
        records[-2]["ended"] += 60
    gate = admit.recorded_alike([run.folder for run in runs])
    assert (gate.passed, gate.why.split()[1]) == (True, "records")
    assert int(gate.why.split()[0]) > 40


def test_a_cold_launch_that_records_something_else_is_told(
    recording: Recording, tmp_path: Path
) -> None:
    runs = three(recording, tmp_path)
    retold(runs[2], 1, loss=7.25)
    gate = admit.recorded_alike([run.folder for run in runs])
    assert not gate.passed
    assert gate.why.startswith("1 records differ; forked {'kind': 'step', 'rank': 1")
    assert "cold {'kind': 'step', 'rank': 1, 'step': 1, 'loss': 7.25" in gate.why


def test_a_scenario_that_never_records_the_same_is_not_held_against_a_cold_launch(
    recording: Recording, tmp_path: Path
) -> None:
    runs = three(recording, tmp_path)
    retold(runs[1], 1, loss=7.25)
    retold(runs[2], 1, loss=7.5)
    gate = admit.recorded_alike([run.folder for run in runs])
    assert (gate.passed, gate.why) == (
        True,
        "not comparable: two forked launches recorded different facts",
    )


def test_a_cold_launch_without_records_is_not_alike(recording: Recording, tmp_path: Path) -> None:
    runs = three(recording, tmp_path)
    runs[2].rank_file("buggy", 1).unlink()
    gate = admit.recorded_alike([run.folder for run in runs])
    assert (gate.passed, gate.why) == (False, "rank 1 left no complete records")
