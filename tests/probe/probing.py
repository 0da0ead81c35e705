"""What tests of probe share: the type of the fixture ``probing``, and what answers contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.layouts import Settings
from harness.training.probe.prober import FOLDER, USUAL

SCRIPTS = FOLDER
SAVE, RESUMED = USUAL["ddp.py"]["save"], USUAL["ddp.py"]["resume"]

Probing = Callable[[str, str | Sequence[str], Settings], Answers]
"""Probes a script of ``SCRIPTS``, one with an absolute path, or a text, with these arguments."""


def layout(answers: Answers, kind: str) -> Compared:
    return next(comparison for comparison in answers.layouts if comparison.layout.kind == kind)


def first_broken(answers: Answers) -> dict[str, tuple[str, str]]:
    """The first broken relation and the meaning of its ratio, by layout; only broken layouts."""
    return {
        comparison.layout.kind: (comparison.broken[0].relation, comparison.broken[0].meaning)
        for comparison in answers.layouts
        if comparison.broken
    }


def refused(answers: Answers) -> list[str]:
    """Why layouts gave no answer."""
    return [
        comparison.no_answer + comparison.log
        for comparison in answers.layouts
        if comparison.no_answer
    ]
