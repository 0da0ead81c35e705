"""The gate for scenarios, on made-up results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs.api.spec import Finding, Outcome
from harness.bugs.results import Result, RunResult
from harness.cli import admit
from harness.cli.admit import Gate
from harness.run import grade
from harness.run.run_config import RunConfig
from harness.run.suite import Done
from tests.made_up import trial_result
from tests.recording import Recording

Capture = pytest.CaptureFixture[str]
S, C, I, U = Outcome.SYMPTOM, Outcome.CLEAN, Outcome.INCONCLUSIVE, Outcome.UNSUPPORTED  # noqa: E741
Changed = Mapping[int, Mapping[str, Outcome]]
"""By number of a run: the outcomes that differ from GOOD."""
GOOD: Mapping[str, Outcome] = {"buggy": S, "fixed": C, "control": C, "reference": C}


class Runs:
    """Replaces ``side_by_side``: run n has the outcomes ``changed[n]``, otherwise the expected
    ones."""

    def __init__(self, changed: Changed, steps: Sequence[int], alarm: bool) -> None:
        self.changed, self.steps, self.alarm = changed, steps, alarm
        self.calls: list[tuple[tuple[str, ...], int]] = []
        self.cold: list[int] = []

    def __call__(self, configs: Sequence[RunConfig], _: object) -> Iterator[tuple[int, Done]]:
        for number, config in enumerate(configs):
            self.cold += [] if config.launch.warm else [number]
            self.calls.append((config.variants, config.seed))
            outcomes = {**GOOD, **self.changed.get(number, {})}
            trials = [self._trial(v, outcomes[v], self.steps[number]) for v in config.variants]
            verdict, reasons = grade.judge(trials, lambda: [])
            result = RunResult(config.scenario, verdict, reasons, tuple(trials))
            yield number, Done(result, 1.0, Path())

    def _trial(self, variant: str, outcome: Outcome, step: int) -> Result:
        has_finding = outcome is S or (self.alarm and variant == "control")
        finding = Finding("wrong", step=step) if has_finding else None
        return trial_result(variant, outcome, GOOD[variant], "because", finding=finding)


Admit = Callable[..., tuple[int, Runs, str]]


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Admit:
    """Runs ``admit`` on made-up runs; returns the exit code, the runs and the output."""

    def admitted(
        changed: Changed | None = None, steps: Sequence[int] = (1, 1, 1, 1), alarm: bool = False
    ) -> tuple[int, Runs, str]:
        runs = Runs(changed or {}, steps, alarm)
        monkeypatch.setattr(admit, "side_by_side", runs)
        monkeypatch.setattr(admit, "claimed", lambda _: Gate("exercised", True, ""))
        monkeypatch.setattr(admit, "recorded_alike", lambda _: Gate("alike", True, ""))
        code = main(["admit", "scenario=bf16_clip", "seed=3"])
        return code, runs, capsys.readouterr().out

    return admitted


def test_a_scenario_with_the_same_outcomes_each_time_is_admitted(admitted: Admit) -> None:
    code, runs, out = admitted()
    assert code == 0
    pair = ("buggy", "fixed")
    assert runs.calls == [(tuple(GOOD), 3), (pair, 3), (pair, 3), (pair, 4)]
    assert runs.cold == [2]
    assert "bf16_clip: admitted" in out


@pytest.mark.parametrize(
    ("changed", "why"),
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
def test_a_scenario_with_another_outcome_is_not_admitted(
    changed: Changed, why: str, admitted: Admit
) -> None:
    code, runs, out = admitted(changed)
    assert code == 1
    assert len(runs.calls) == 4, "nothing is tried again"
    assert any("FAILED" in line and why in line for line in out.splitlines())
    assert "bf16_clip: not admitted" in out


def test_an_alarm_in_a_clean_variant_and_other_steps_in_repeats_are_reported(
    admitted: Admit,
) -> None:
    code, _, out = admitted(alarm=True)
    assert code == 1
    assert "control: wrong" in out
    code, _, out = admitted(steps=(1, 2, 1, 1))
    assert code == 0
    assert "(at steps 1, 2, 1)" in out


def test_a_scenario_that_this_machine_cannot_run_is_unsupported(admitted: Admit) -> None:
    assert admitted({n: dict.fromkeys(GOOD, U) for n in range(4)})[0] == 4


def test_exercised_must_hold_for_the_records_of_buggy(recording: Recording) -> None:
    gate = admit.claimed(recording.folder)
    assert gate.passed
    assert gate.why.startswith(
        "no symptom, although the trigger occurred: clipping was active in all 10 steps"
    )
    with recording.records("buggy") as records:
        for record in records:
            record.update({"grad_norm": 0.01} if record["kind"] == "step" else {})
    gate = admit.claimed(recording.folder)
    assert not gate.passed
    assert "clipping was active in 0 of 10 steps" in gate.why


def step(run: Recording, **facts: object) -> None:
    """Change a step of rank 1 of the buggy variant; sealed."""
    with run.record("buggy", "step", 1) as record:
        record.update(facts)


def later(run: Recording) -> None:
    with run.records("fixed", 1) as records:
        records[-2]["ended"] += 60


NOT_COMPARABLE = "not comparable: two forked launches recorded different facts"
COLD = "cold {'kind': 'step', 'rank': 1, 'step': 1, 'loss': 7.25"
Edits = Mapping[int, Callable[[Recording], object]]


@pytest.mark.parametrize(
    ("edits", "passed", "why"),
    [
        ({2: later}, True, "records"),  # times may differ
        ({2: lambda run: step(run, loss=7.25)}, False, COLD),
        ({n: lambda run, n=n: step(run, loss=7.0 + n) for n in (1, 2)}, True, NOT_COMPARABLE),
        ({2: lambda run: run.rank_file("buggy", 1).unlink()}, False, "rank 1 left no complete"),
    ],
    ids=["same", "different", "never the same", "no records"],
)
def test_a_cold_launch_must_record_the_same_as_two_forked_ones(
    edits: Edits, passed: bool, why: str, recording: Recording, tmp_path: Path
) -> None:
    runs = [Recording(shutil.copytree(recording.folder, tmp_path / name)) for name in "123"]
    for number, edit in edits.items():
        edit(runs[number])
    gate = admit.recorded_alike([run.folder for run in runs])
    assert gate.passed is passed
    assert why in gate.why
