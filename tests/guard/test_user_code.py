"""What users do with models has the same effect under guard: output, errors, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.launch

Outcome = Callable[[str, bool], Any]


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    command = [sys.executable, "-m", "tests.guard.user_code"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def ask(case: str, watched: bool) -> Any:
            requests.write(json.dumps({"case": case, "watched": watched}) + "\n")
            requests.flush()
            return json.loads(answers.readline())

        yield ask
        requests.close()


def without_guard(text: str) -> str:
    """What a process printed that is not of guard, without times and process numbers."""
    lines = [line for line in text.splitlines() if not line.startswith("guard:")]
    return re.sub(r"\d\d:\d\d:\d\d\.\d+ \d+", "", "\n".join(lines))


def assert_the_same(outcome: Outcome, case: str) -> Any:
    without, watched = outcome(case, False), outcome(case, True)
    assert (watched["code"], watched["out"]) == (without["code"], without["out"]), watched["err"]
    assert without_guard(watched["err"]) == without_guard(without["err"])
    assert "ALARM" not in watched["err"]
    return watched


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "copies",
        pytest.param("tensors", marks=pytest.mark.slow),
        pytest.param("scripts", marks=pytest.mark.slow),
        "without_init",
        pytest.param("many_optimizers", marks=pytest.mark.slow),
        "clock_jumps",
    ],
)
def test_a_case_has_the_same_effect(outcome: Outcome, case: str) -> None:
    assert assert_the_same(outcome, case)["code"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", ["symbols", "compiles"])
def test_a_graph_is_the_same(outcome: Outcome, case: str) -> None:
    assert assert_the_same(outcome, case)["code"] == 0


@pytest.mark.slow
def test_two_threads_that_train_are_not_watched_and_that_is_said(outcome: Outcome) -> None:
    assert "two threads of this process train" in assert_the_same(outcome, "threads")["err"]


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_one_line(outcome: Outcome) -> None:
    assert assert_the_same(outcome, "report_vanishes")["code"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "code"), [("raises", 1), ("exits", 5), ("exits_at_once", 6), ("interrupted", 130)]
)
def test_a_training_ends_with_its_code_and_its_traceback(
    outcome: Outcome, case: str, code: int
) -> None:
    assert assert_the_same(outcome, case)["code"] == code
