"""The report of a probe: what counts, and what stands in a line of its own."""

from __future__ import annotations

from harness.probe.compare.comparison import Compared
from harness.probe.compare.relations import Broken
from harness.probe.layouts import Layout, Settings, reference
from harness.probe.probe_report import exit_code, text
from harness.probe.questions import Answers

LAYOUT: Layout = reference(Settings())


def test_without_samples_an_answer_is_not_green() -> None:
    answers = Answers("4 steps", [Compared(LAYOUT)])
    assert exit_code(answers) == 0
    answers.unseen = True
    assert exit_code(answers) == 3
    assert any("--without samples" in line for line in text(answers, 1.0))


def test_independent_faults_have_a_line_each() -> None:
    relations = ("samples", "learning rate", "loss", "update", "optimizer")
    found = Compared(LAYOUT, broken=[Broken(name, f"{name} differs") for name in relations])
    lines = list(text(Answers("", [found]), 1.0))
    assert "    and as a result: loss, update" in lines
    assert "    learning rate: learning rate differs" in lines
    assert "    optimizer: optimizer differs" in lines
