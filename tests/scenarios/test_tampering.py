"""Changed evidence is refused: the tables of cases are in ``tests/tampering``."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Outcome
from tests.tampering import facts, findings, folder
from tests.tampering.changes import Case, changed, graded, recorded_trial, trials


def module(case: Case) -> ModuleType:
    return catalog.load(case.scenario)


@pytest.mark.parametrize("case", [*folder.ALL, *facts.ALL], ids=str)
def test_a_trial_whose_evidence_was_changed_is_inconclusive(case: Case, tmp_path: Path) -> None:
    outcome, reason = graded(case, tmp_path)
    assert outcome is Outcome.INCONCLUSIVE
    assert case.says in reason


@pytest.mark.parametrize("case", findings.BELIEVED, ids=str)
def test_a_trial_with_a_possible_change_has_the_expected_outcome(
    case: Case, tmp_path: Path
) -> None:
    outcome, reason = graded(case, tmp_path)
    assert outcome is not Outcome.INCONCLUSIVE
    assert case.says in reason


@pytest.mark.parametrize("case", findings.DOUBTED, ids=str)
def test_a_changed_finding_is_not_the_documented_symptom(case: Case) -> None:
    finding = module(case).detect(changed(case))
    assert finding is not None
    assert not finding.documented
    assert case.says in finding.message


@pytest.mark.parametrize("case", findings.UNEXERCISED, ids=str)
def test_a_changed_trial_was_not_triggered(case: Case) -> None:
    exercise = module(case).exercised(changed(case))
    assert not exercise.met
    assert case.says in exercise.text


@pytest.mark.parametrize("case", findings.DISAGREEING, ids=str)
def test_a_changed_trial_disagrees_with_the_others(case: Case) -> None:
    assert any(case.says in reason for reason in module(case).agree(trials(case)))


@pytest.mark.parametrize("case", findings.FIRING, ids=str)
def test_an_insufficient_check_misses_the_bug_but_fires_on_the_change(case: Case) -> None:
    of_the_bug = recorded_trial(case.scenario, case.place)
    assert module(case).insufficient_checks(of_the_bug)[case.says] is False
    assert module(case).insufficient_checks(changed(case))[case.says] is True
