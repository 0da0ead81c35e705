"""What tests of probe share: the type of the fixture ``probing``, and what answers contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.probe import loops
from harness.probe.compare.comparison import Compared
from harness.probe.layouts import Settings
from harness.probe.questions import Answers

SCRIPTS = loops.FOLDER
SAVE, RESUMED = loops.SAVE, loops.RESUME

Probing = Callable[[str, str | Sequence[str], Settings], Answers]
"""Probes a script of ``SCRIPTS``, or one with an absolute path, with these arguments."""


def layout(answers: Answers, kind: str) -> Compared:
    return next(found for found in answers.layouts if found.layout.kind == kind)


def first_broken(answers: Answers) -> dict[str, tuple[str, str]]:
    """By layout, the relation that is broken first, and what its ratio means; right ones not."""
    return {
        found.layout.kind: (found.broken[0].relation, found.broken[0].meaning)
        for found in answers.layouts
        if found.broken
    }


def refused(answers: Answers) -> list[str]:
    """Why layouts gave no answer."""
    return [found.no_answer + found.log for found in answers.layouts if found.no_answer]
