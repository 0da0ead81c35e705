"""A training under guard ends as it would without, whatever fails."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from harness.rank.guard.posting.budget import FIRST_CHECKS
from tests.guard import harms
from tests.guard.trainer import Run, Trainer
from tests.slow import slow

pytestmark = pytest.mark.launch

STEPS = 12


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """The results of trainings without guard."""
    return {}


def run_with_harm(
    under_guard: Trainer, harm: str, training: str = "ddp", watched: bool = True
) -> Run:
    return under_guard(training, steps=STEPS, watched=watched, request={"harm": harm})


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


FAULT = "made-up fault"
UNSEEN = {
    "first_handler_fails": (0, ""),
    "handler_fails": (0, "guard had a fault"),
    "forks_worker": (STEPS, ""),
}
"""The steps that the summary then has, and what it says was not seen."""


@pytest.mark.parametrize(
    ("harm", "stopped", "error", "note"),
    [
        ("first_handler_fails", (1, 1), FAULT, ""),
        *slow(
            ("handler_fails", (1, 1), FAULT, ""),
            ("hook_fails", (1, 1), FAULT, ""),
            ("arming_fails", (1, 1), FAULT, ""),
            ("judge_fails", (1, 0), "", FAULT),
            ("report_fails", (1, 0), None, None),  # it has no summary
            ("handler_fails_on_rank_1", (1, 1), "", "guard stopped on rank 1: RuntimeError"),
            ("posts_are_garbage", (0, 0), "", "check 1: the post of rank 1 cannot be read"),
            ("rank_never_posts", (0, 0), "", "check 1 was not judged: no post of rank 1"),
            ("thread_dies_on_rank_1", (1, 0), "", "guard stopped on rank 1: SystemExit"),
            ("thread_cannot_start", (1, 1), None, None),
            ("forks_worker", (0, 0), "", ""),
        ),
    ],
)
def test_a_fault_of_guard_is_one_line_or_a_note_and_changes_no_training(
    under_guard: Trainer,
    harm: str,
    stopped: tuple[int, int],
    error: str | None,
    note: str | None,
    results: dict[str, Any],
) -> None:
    run = run_with_harm(under_guard, harm)

    assert tuple(len(stops(run, rank)) for rank in (0, 1)) == stopped
    assert len(lines(run, 1)) == stopped[1]
    for rank in (rank for rank in (0, 1) if error and stopped[rank]):
        assert f"stopped on rank {rank}, the training goes on: " in stops(run, rank)[0]
    if error is not None and note is not None:
        assert error in run.summary["error"]
        assert not note or any(note in line for line in run.summary["notes"])
    assert run.alarms == []
    assert_unchanged(under_guard, "ddp", run, results)
    if harm in UNSEEN:
        steps, words = UNSEEN[harm]
        assert run.summary["steps"] == steps
        assert words in " ".join(run.summary["not_seen"])
        has_ending = harm != "first_handler_fails"
        assert ("no alarm" in "".join(lines(run, 0))) == has_ending
        assert sum("steps," in line for line in lines(run, 0)) == has_ending


@pytest.mark.slow
def test_steps_that_a_graph_captures_are_not_checked(
    under_guard: Trainer, results: dict[str, Any]
) -> None:
    run = run_with_harm(under_guard, "captures_graph")

    assert run.summary["checked"][0] == harms.STEP
    assert len(run.summary["checked"]) >= FIRST_CHECKS
    assert run.summary["error"] == ""
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
    with_guard, without = (run_with_harm(under_guard, harm, training, on) for on in (True, False))

    assert with_guard.codes == without.codes
    assert with_guard.results == without.results
    assert len(stops(with_guard, 0)) <= 1
    assert stops(with_guard, 1) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "code"), [("terminated_in_check", -15), ("terminated_with_handler", 7)]
)
def test_signal_ends_a_rank_in_a_check(under_guard: Trainer, harm: str, code: int) -> None:
    run = run_with_harm(under_guard, harm)

    assert run.codes == [code, code]
    assert all("terminate called" not in log and "Traceback" not in log for log in run.logs)
    assert all(("the script's handler ran" in log) == (code == 7) for log in run.logs)


@pytest.mark.slow
def test_interpreter_ends_after_a_check(under_guard: Trainer) -> None:
    """A thread that is in C++ at that time would abort the process."""
    codes = [under_guard("ddp", steps=5).codes for _ in range(20)]

    assert codes == [[0, 0]] * 20


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
    words = [sys.executable, "-c", f"from harness.rank.guard import start; start()\n{script}"]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (process.stdout + process.stderr, process.returncode) == ("", code)
