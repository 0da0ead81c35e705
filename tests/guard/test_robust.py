"""A training under guard ends as it would without, whatever fails."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from harness.rank.guard.posting.budget import FIRST_CHECKS
from tests.guard import harms
from tests.guard.conftest import Run, Trainer

pytestmark = pytest.mark.launch

STEPS = 12


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """The results of trainings without guard."""
    return {}


def assert_unchanged(
    under_guard: Trainer, training: str, run: Run, results: dict[str, Any]
) -> None:
    """Losses and weights are, bit by bit, those of the training without guard."""
    if training not in results:
        results[training] = under_guard(training, steps=STEPS, watched=False).results
    assert run.results == results[training]
    assert len(run.results) == len(run.codes)
    assert run.codes == [0, 0]


def lines(run: Run, rank: int) -> list[str]:
    return [line for line in run.logs[rank].splitlines() if "guard" in line or "Traceback" in line]


def stops(run: Run, rank: int) -> list[str]:
    return [line for line in lines(run, rank) if "stopped" in line]


@pytest.mark.slow
@pytest.mark.parametrize("training", ["ddp dropout clip accumulate", "fsdp2 mixed"])
def test_training_is_the_same_bit_by_bit(
    under_guard: Trainer, training: str, results: dict[str, Any]
) -> None:
    run = under_guard(training, steps=STEPS)

    assert len(run.summary["checked"]) >= 5
    assert_unchanged(under_guard, training, run, results)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["handler_fails", "hook_fails", "arming_fails"])
def test_fault_of_guard_is_one_line(
    under_guard: Trainer, harm: str, results: dict[str, Any]
) -> None:
    run = under_guard("ddp", steps=STEPS, harm=harm)

    for rank in (0, 1):
        (line,) = stops(run, rank)
        assert f"stopped on rank {rank}, the training goes on: " in line
    assert "made-up fault" in run.summary["error"]
    assert "are not checked: guard had a fault" in run.summary["not_seen"][0]
    assert run.alarms == []
    assert_unchanged(under_guard, "ddp", run, results)


def test_a_fault_of_guard_before_the_first_training_is_in_the_summary(
    under_guard: Trainer, results: dict[str, Any]
) -> None:
    run = under_guard("ddp", steps=STEPS, harm="first_handler_fails")
    assert "made-up fault" in run.summary["error"]
    assert run.summary["steps"] == 0
    assert "no alarm" not in "".join(lines(run, 0))
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_steps_that_a_graph_captures_are_not_checked(
    under_guard: Trainer, results: dict[str, Any]
) -> None:
    run = under_guard("ddp", steps=STEPS, harm="captures_graph")

    assert run.summary["checked"][0] == harms.STEP
    assert len(run.summary["checked"]) >= FIRST_CHECKS
    assert run.summary["error"] == ""
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_fault_of_the_judge_is_one_line(under_guard: Trainer, results: dict[str, Any]) -> None:
    run = under_guard("ddp", steps=STEPS, harm="judge_fails")

    assert len(stops(run, 0)) == 1
    assert lines(run, 1) == []
    assert "made-up fault" in run.summary["notes"][0]
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_fault_of_the_summary_is_one_line(under_guard: Trainer, results: dict[str, Any]) -> None:
    run = under_guard("ddp", steps=STEPS, harm="report_fails")

    assert len(stops(run, 0)) == 1
    assert lines(run, 1) == []
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_fault_on_one_rank_ends_all_checks(under_guard: Trainer, results: dict[str, Any]) -> None:
    run = under_guard("ddp", steps=STEPS, harm="handler_fails_on_rank_1")

    assert len(stops(run, 1)) == 1
    assert any("guard stopped on rank 1: RuntimeError" in note for note in run.summary["notes"])
    assert run.alarms == []
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_post_that_cannot_be_read_is_a_note(under_guard: Trainer, results: dict[str, Any]) -> None:
    run = under_guard("ddp", steps=STEPS, harm="posts_are_garbage")

    assert run.alarms == []
    assert "check 1: the post of rank 1 cannot be read" in run.summary["notes"]
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_rank_that_never_posts_is_a_note(under_guard: Trainer, results: dict[str, Any]) -> None:
    run = under_guard("ddp", steps=STEPS, harm="rank_never_posts")

    assert run.alarms == []
    assert "check 1 was not judged: no post of rank 1" in run.summary["notes"]
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_thread_that_dies_on_one_rank_ends_all_checks(
    under_guard: Trainer, results: dict[str, Any]
) -> None:
    run = under_guard("ddp", steps=STEPS, harm="thread_dies_on_rank_1")

    assert any("guard stopped on rank 1: SystemExit" in note for note in run.summary["notes"])
    assert lines(run, 1) == []
    assert run.alarms == []
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
def test_thread_that_cannot_start_is_one_line(
    under_guard: Trainer, results: dict[str, Any]
) -> None:
    run = under_guard("ddp", steps=STEPS, harm="thread_cannot_start")

    for rank in (0, 1):
        assert len(stops(run, rank)) == 1
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "harm"),
    [
        ("ddp", "rank_0_dies"),
        ("ddp", "rank_0_is_killed"),
        ("by_hand never_reduced", "rank_0_is_killed"),  # the other rank trains on
        ("ddp", "store_dies"),
        ("ddp", "store_hangs"),
    ],
)
def test_ranks_end_as_without_guard(under_guard: Trainer, training: str, harm: str) -> None:
    with_guard = under_guard(training, steps=STEPS, harm=harm)
    without = under_guard(training, steps=STEPS, harm=harm, watched=False)

    assert with_guard.codes == without.codes
    assert with_guard.results == without.results
    assert len(stops(with_guard, 0)) <= 1
    assert stops(with_guard, 1) == []


@pytest.mark.slow
def test_process_that_a_rank_forked_is_not_watched(
    under_guard: Trainer, results: dict[str, Any]
) -> None:
    run = under_guard("ddp", steps=STEPS, harm="forks_worker")

    assert run.summary["steps"] == STEPS
    assert sum("steps," in line for line in lines(run, 0)) == 1
    assert lines(run, 1) == []
    assert_unchanged(under_guard, "ddp", run, results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "code"), [("terminated_in_check", -15), ("terminated_with_handler", 7)]
)
def test_signal_ends_a_rank_in_a_check(under_guard: Trainer, harm: str, code: int) -> None:
    run = under_guard("ddp", steps=STEPS, harm=harm)

    assert run.codes == [code, code]
    assert all("terminate called" not in log and "Traceback" not in log for log in run.logs)
    assert all(("the script's handler ran" in log) == (code == 7) for log in run.logs)


@pytest.mark.slow
def test_interpreter_ends_after_a_check(under_guard: Trainer) -> None:
    """A thread that is in C++ at that time would abort the process."""
    codes = [under_guard("ddp", steps=5).codes for _ in range(20)]

    assert codes == [[0, 0]] * 20


def _printed(script: str) -> tuple[str, int]:
    process = subprocess.run(
        [sys.executable, "-c", "from harness.rank.guard import start; start()\n" + script],
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout + process.stderr, process.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import torch; torch.ones(3).sum()", 0),
        ("import torch; torch.optim.SGD([torch.ones(1, requires_grad=True)], 1.0); exit(3)", 3),
        ("import torch; torch.ones(1, requires_grad=True).sum().backward()", 0),
    ],
)
def test_process_that_trains_nothing_prints_nothing(script: str, code: int) -> None:
    assert _printed(script) == ("", code)
