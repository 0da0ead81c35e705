"""The report of a probe: its exit code, and what has its own line."""

from __future__ import annotations

import pytest

from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.relations import BEGAN_AGAIN
from harness.training.probe.layouts import Layout, Settings, reference
from harness.training.probe.probe_report import exit_code, text

LAYOUT: Layout = reference(Settings())


def test_without_samples_an_answer_is_not_green() -> None:
    answers = Answers("4 steps", [Compared(LAYOUT)])
    assert exit_code(answers) == 0
    answers.unseen = True
    assert exit_code(answers) == 3
    assert any("--without samples" in line for line in text(answers, 1.0))


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(["right"], 0), (["right", "refused"], 3), (["no answer"], 3), (["refused", "wrong"], 1)],
)
def test_a_model_is_right_only_if_all_its_relations_are(statuses: list[str], code: int) -> None:
    relations = {str(number): [status, ""] for number, status in enumerate(statuses)}
    assert exit_code(Answers("", relations=relations)) == code


def test_independent_faults_have_a_line_each() -> None:
    relations = ("samples", "learning rate", "loss", "update", "optimizer")
    comparison = Compared(LAYOUT, broken=[Broken(name, f"{name} differs") for name in relations])
    lines = list(text(Answers("", [comparison]), 1.0))
    assert "    and as a result: loss, update" in lines
    assert "    learning rate: learning rate differs" in lines
    assert "    optimizer: optimizer differs" in lines


def test_another_factor_is_not_as_above() -> None:
    """A layout with 0.851 times the gradient was as one with 1.014 times."""
    faults = [
        Broken("gradient", "rank 0: 1.014 times the reference's", 1.014, details=("norm 1",)),
        Broken("gradient", "ranks 0, 1: 0.851 times the reference's", 0.851, details=("norm 2",)),
        Broken("gradient", "rank 0: 0.8511 times the reference's", 0.8511, details=("norm 3",)),
    ]
    report = list(text(Answers("", [Compared(LAYOUT, broken=[one]) for one in faults]), 1.0))
    assert "    ranks 0, 1: 0.851 times the reference's" in report
    assert "    norm 2" in report
    assert "    rank 0: 0.8511 times the reference's, as above" in report


def test_the_first_line_says_that_a_resume_began_again() -> None:
    comparison = Compared(LAYOUT, broken=[Broken("weights", BEGAN_AGAIN)])
    assert "begins again at step 1" in next(text(Answers("", [comparison]), 1.0))


def test_the_first_line_counts_the_notes_also_without_an_answer() -> None:
    answers = Answers("", [Compared(LAYOUT, no_answer="draws other rows")], notes=["zero_grad"])
    assert next(text(answers, 1.0)).endswith("no answer 1 rank. 1 note below")
