"""Damaged run folders are graded: no outcome may be wrong, judged by an independent audit.

This tests a few of them; CI tests 2,000, and ``make test-all`` 50,000.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.__main__ import EXCEPTION, fuzz, report
from tests.fuzz.base import Base, bases
from tests.fuzz.faults import process_died

COUNT = 24


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return bases(tmp_path_factory.mktemp("bases"))


def test_no_outcome_of_a_damaged_run_is_wrong(tmp_path: Path, known: list[Base]) -> None:
    counts, wrong = fuzz(0, COUNT, known, tmp_path)
    assert wrong == []
    assert counts["reproduced"] < COUNT / 2, "most faults damage a reproduced run"
    assert counts["inconclusive"] + counts["refused in one line"] > COUNT / 3


def test_the_audit_notices_a_missing_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: list[Base]
) -> None:
    """Grading without the check of exits accepts a process that died."""
    monkeypatch.setattr("harness.trial.validation._check_exit", lambda _: None)
    monkeypatch.setattr("tests.fuzz.__main__.damage", lambda *run: (process_died(*run), False))
    _, wrong = fuzz(0, 3, known, tmp_path)
    assert any("a process died" in each for each in wrong)


def test_an_exception_of_grading_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: list[Base]
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("by 0")

    monkeypatch.setattr("tests.fuzz.__main__.grade", fail)
    counts, wrong = fuzz(0, 1, known, tmp_path)
    assert counts == {EXCEPTION: 1}
    assert "ZeroDivisionError: by 0" in wrong[0]


def test_the_report_lists_all_wrong_outcomes_and_exceptions_first() -> None:
    wrong = [f"seed 1, number {n}: is clean" for n in range(30)]
    wrong.insert(25, f"seed 2, number 3: a fact was odd: {EXCEPTION}: Traceback")
    lines = list(report(Counter(inconclusive=40, reproduced=60), wrong))
    assert lines[:3] == ["     60 reproduced", "     40 inconclusive", f"{31:7} wrong outcomes"]
    assert lines[3] == wrong[25]
    assert sorted(lines[3:]) == sorted(wrong)
