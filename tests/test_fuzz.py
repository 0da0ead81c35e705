"""Spoilt run folders are graded: nothing is told that a careful person would not.

A few of them; CI has two thousand, and ``make test-all`` fifty thousand.
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


def test_nothing_wrong_is_told_of_spoilt_runs(tmp_path: Path, known: list[Base]) -> None:
    told, wrong = fuzz(0, COUNT, known, tmp_path)
    assert wrong == []
    assert told["reproduced"] < COUNT / 2, "most faults spoil what was reproduced"
    assert told["inconclusive"] + told["refused in one line"] > COUNT / 3


def test_the_audit_sees_a_grading_that_believes_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: list[Base]
) -> None:
    """Exits are not looked at: a process that died is believed."""
    monkeypatch.setattr("harness.trial.validation._check_exit", lambda _: None)
    monkeypatch.setattr("tests.fuzz.__main__.spoil", lambda *spoilt: (process_died(*spoilt), False))
    _, wrong = fuzz(0, 3, known, tmp_path)
    assert any("a process died" in each for each in wrong)


def test_an_exception_of_grading_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: list[Base]
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("by 0")

    monkeypatch.setattr("tests.fuzz.__main__.grade", fail)
    told, wrong = fuzz(0, 1, known, tmp_path)
    assert told == {EXCEPTION: 1}
    assert "ZeroDivisionError: by 0" in wrong[0]


def test_all_is_printed_that_should_not_have_been_told_and_exceptions_first() -> None:
    wrong = [f"seed 1, number {n}: is clean" for n in range(30)]
    wrong.insert(25, f"seed 2, number 3: a fact was odd: {EXCEPTION}: Traceback")
    lines = list(report(Counter(inconclusive=40, reproduced=60), wrong))
    assert lines[:3] == [
        "     60 reproduced",
        "     40 inconclusive",
        f"{31:7} should not have been told",
    ]
    assert lines[3] == wrong[25]
    assert sorted(lines[3:]) == sorted(wrong)
