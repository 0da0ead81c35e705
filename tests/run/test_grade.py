"""Grading of a recorded run, undamaged and changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Finding, Lane, Outcome, Verdict
from harness.rank.recorder import HARNESS_KINDS
from harness.rank.run_folder import RUN_FILE
from harness.run.grade import grade, judge
from harness.run.trials import trial_content
from harness.system.errors import Inconclusive
from harness.system.files import read_json
from tests.made_up import trial_result
from tests.recording import RECORDED, Recording, read, recorded, stored_verdict
from tests.schemas import complaints
from tests.tampering.changes import recorded_trial

STORED = recorded()


@pytest.mark.parametrize("scenario", STORED)
def test_a_recorded_run_is_graded_as_when_it_ran(scenario: str) -> None:
    stored = stored_verdict(STORED[scenario])
    graded = json.loads(json.dumps(grade(STORED[scenario]).to_json()))
    if catalog.scenario(scenario).triggered:  # how it is said is not recorded
        for trial in (*stored["trials"], *graded["trials"]):
            trial["reason"] = re.sub(r"(?<=the trigger )(.*?: ).*", r"\1", trial["reason"])
    assert graded == stored
    assert complaints("grade.json", graded) == []
    assert graded["verdict"] == "reproduced"


@pytest.mark.parametrize("scenario", STORED)
def test_a_recorded_run_has_the_variants_of_today(scenario: str) -> None:
    run = read_json(STORED[scenario] / RUN_FILE)
    assert set(run["trials"]) == set(catalog.scenario(scenario).variants)
    spec = catalog.scenario(scenario)
    for variant, content in run["trials"].items():
        chosen = pins.complete(spec, {**run["pins"], **spec.pins_of(variant)})
        new_content = trial_content(scenario, variant, run["params"], chosen, Lane(run["lane"]))
        today = json.loads(json.dumps(new_content))
        for name in ("expect", "triggers", "ranks", "launches", "params", "pins", "modules"):
            assert content[name] == today[name], f"{variant}: {name}"


@pytest.mark.parametrize("scenario", STORED)
def test_a_variant_is_triggered_exactly_if_it_should_be(scenario: str) -> None:
    for name, variant in catalog.scenario(scenario).variants.items():
        exercise = catalog.load(scenario).exercised(recorded_trial(scenario, name))
        assert exercise.met is variant.triggers, name


def test_an_inconclusive_trial_makes_the_run_inconclusive_and_names_the_failed_rank(
    recording: Recording,
) -> None:
    failure = {"rank": 1, "message": "RuntimeError: out of luck"}
    with recording.exit("buggy") as exit_:
        exit_.update(code=1, failure=failure)
    result = recording.grade()
    assert (result.verdict, result.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert result.reasons == ("buggy: rank 1 failed first: RuntimeError: out of luck",)
    assert result.trials[0].finding is None
    assert result.trials[0].failure == failure


def inconclusive(recording: Recording, variant: str, reason: str) -> None:
    trial = recording.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert reason in trial.reason
    assert recording.grade().exit_code == 3


def test_a_fixed_trial_with_one_unclipped_step_is_not_exercised(recording: Recording) -> None:
    half = catalog.scenario("bf16_clip").params().gradient_clipping / 2
    for rank in (0, 1):
        with recording.record("fixed", "step", rank) as step:
            small = half / step["gradient"]
            step["grad_norm"] = step["gradient"] = half
            step["got"] = {n: [norm * small, 1.0, 0.0] for n, (norm, _, _) in step["got"].items()}
    inconclusive(recording, "fixed", "did not occur")


def show_as(recording: Recording, variant: str, source: str) -> None:
    """Replace the scenario's records of a variant by those of another one."""
    for rank in (0, 1):
        records = read(RECORDED / source / f"rank_{rank}.jsonl")
        scenario_records = [record for record in records if record["kind"] not in HARNESS_KINDS]
        with recording.records(variant, rank) as records:
            harness_records = [record for record in records if record["kind"] in HARNESS_KINDS]
            records[:] = [*harness_records[:2], *scenario_records, *harness_records[2:]]


@pytest.mark.parametrize(
    ("variant", "source", "reason"),
    [
        ("fixed", "buggy", "fixed: symptom, expected clean"),
        ("buggy", "fixed", "buggy: clean, expected symptom"),
    ],
)
def test_an_outcome_depends_on_the_records_and_must_be_the_expected_one(
    recording: Recording, variant: str, source: str, reason: str
) -> None:
    show_as(recording, variant, source)
    result = recording.grade()
    assert (result.verdict, result.exit_code) == (Verdict.NOT_REPRODUCED, 1)
    assert reason in result.reasons


def test_a_fixed_variant_that_trains_unlike_one_rank_is_not_reproduced(
    recording: Recording,
) -> None:
    with recording.record("reference", "step") as step:
        step["loss"] += 0.01
    result = recording.grade()
    assert (result.verdict, result.exit_code) == (Verdict.NOT_REPRODUCED, 1)
    (reason,) = result.reasons
    assert "where one rank has" in reason


def test_a_control_whose_trigger_was_on_is_inconclusive(recording: Recording) -> None:
    show_as(recording, "control", "fixed")
    assert recording.trial("control").outcome is Outcome.INCONCLUSIVE


def test_a_control_with_the_symptom_is_not_reproduced_and_no_comparison_is_inconclusive() -> None:
    outcomes = {"buggy": Outcome.SYMPTOM, "fixed": Outcome.CLEAN, "control": Outcome.SYMPTOM}
    expected = {**outcomes, "control": Outcome.CLEAN}
    trials = [trial_result(v, outcome, expected[v], "") for v, outcome in outcomes.items()]
    assert judge(trials, list) == (Verdict.NOT_REPRODUCED, ("control: symptom, expected clean",))
    assert judge(trials[:2], list) == (Verdict.REPRODUCED, ())
    fails = Mock(side_effect=Inconclusive("cannot judge these records"))
    assert judge(trials[:2], fails) == (Verdict.INCONCLUSIVE, ("cannot judge these records",))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("plan", ZeroDivisionError("by 0")),
        ("detect", RecursionError()),
        ("insufficient_checks", AssertionError()),
    ],
)
def test_an_exception_in_a_scenario_is_inconclusive_and_names_the_function(
    name: str, fault: Exception, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog.load("bf16_clip"), name, Mock(side_effect=fault))
    trial = recording.trial("buggy")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert f"bf16_clip.{name} cannot judge these records: {type(fault).__name__}" in trial.reason


@pytest.mark.parametrize(
    ("name", "result", "message"),
    [
        ("detect", "wrong", "detect returned 'wrong', expected a Finding"),
        ("exercised", True, "exercised returned True, expected an Exercise"),
        ("detect", Finding("far", magnitude=float("nan")), "the finding's magnitude is nan"),
    ],
)
def test_a_result_of_another_type_is_inconclusive(
    name: str, result: object, message: str, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog.load("bf16_clip"), name, lambda _: result)
    trial = recording.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert message in trial.reason


def test_an_unsupported_trial_makes_the_run_unsupported(recording: Recording) -> None:
    with recording.run() as run:
        fixed = run["trials"]["fixed"]
        fixed["unsupported"] = "needs 2 GPUs, and this machine has 0"
        del fixed["overlay"], fixed["files"]
    result = recording.grade()
    assert (result.verdict, result.exit_code) == (Verdict.UNSUPPORTED, 4)
    assert result.reasons == ("fixed: needs 2 GPUs, and this machine has 0",)


@pytest.mark.parametrize(("source", "code"), [("buggy", 0), ("fixed", 1)])
def test_a_single_variant_is_unjudged_but_must_have_the_expected_outcome(
    recording: Recording, source: str, code: int
) -> None:
    show_as(recording, "buggy", source)
    with recording.run() as run:
        run["trials"] = {"buggy": run["trials"]["buggy"]}
    result = recording.grade()
    assert (result.verdict, result.exit_code) == (Verdict.UNJUDGED, code)


def test_a_phase_counts_for_the_slowest_of_the_ranks_that_have_it(recording: Recording) -> None:
    seconds_by_rank = ({"torch": 2.0, "upstream": 1.0}, {"torch": 3.0})
    for rank, seconds in enumerate(seconds_by_rank):
        with recording.record("buggy", "phases", rank) as phases:
            phases["seconds"] = seconds
    assert recording.trial("buggy").phases == {"torch": 3.0, "upstream": 1.0}


def test_a_run_folder_may_be_moved(recording: Recording, tmp_path: Path) -> None:
    folder = recording.folder.rename(tmp_path / "moved")
    assert grade(folder).verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("text", ["[]", '{"scenario": "bf16_clip"}'])
def test_a_folder_without_a_valid_run_json_is_inconclusive(tmp_path: Path, text: str) -> None:
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(Inconclusive):
        grade(tmp_path)
