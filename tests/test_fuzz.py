"""Spoilt run folders are graded: nothing is told that a careful person would not.

A few of them; ``make test`` has two thousand, and ``make test-all`` fifty thousand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import fuzz

COUNT = 100


def test_nothing_wrong_is_told_of_spoilt_runs(tmp_path: Path) -> None:
    told, wrong = fuzz(0, COUNT, tmp_path)
    assert wrong == []
    assert told["reproduced"] < COUNT / 2, "most faults spoil what was reproduced"
    assert told["inconclusive"] + told["refused in one line"] > COUNT / 3


def test_the_audit_sees_a_grading_that_believes_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exits are not looked at: a process that died is believed."""
    monkeypatch.setattr("harness.trial.proof._check_exit", lambda _: None)
    _, wrong = fuzz(0, COUNT, tmp_path)
    assert any("a process died" in each for each in wrong)
