"""What a detector did on one bug, from the trials with it and without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Found(str, Enum):
    """What a detector says of a bug."""

    DETECTED = "detected"
    MISSED = "missed"
    FALSE_ALARM = "false alarm"
    """It gives an alarm also where the bug is not, so its alarm says nothing."""
    DISTURBS = "changes the training"
    NOT_APPLICABLE = "not applicable"
    """It was not attached: nothing that it could watch is trained."""
    NO_ANSWER = "no answer"
    """The bug did not show as documented, or the detector raised."""

    __str__ = str.__str__


@dataclass(frozen=True)
class Watched:
    """A trial with a detector."""

    variant: str
    seed: int
    symptom: bool
    """Whether the bug was there."""
    since: int | None
    """The step at which the symptom was there first, if the scenario knows it."""
    attached: int
    """The trainings that the detector watched, over all ranks and launches."""
    alarms: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    changed: str = ""
    calls: int = 0
    seconds: float = 0.0
    releases: Mapping[str, str] = field(default_factory=dict)
    """All packages beside torch, by name, with the version."""

    @property
    def first(self) -> int | None:
        """The step of the first alarm."""
        return min((int(one["step"]) for one in self.alarms), default=None)

    @property
    def text(self) -> str:
        return min(((one["step"], one["text"]) for one in self.alarms), default=(0, ""))[1]


@dataclass(frozen=True)
class Score:
    """A detector on one bug."""

    scenario: str
    detector: str
    found: Found
    reason: str = ""
    step: int | None = None
    """At which the first alarm came, counted in steps of the optimizer."""
    late: int | None = None
    """By how many steps the alarm came after the symptom."""
    false_alarms: tuple[str, ...] = ()
    """The variants without the bug in which it gave an alarm."""
    trials: Sequence[Watched] = field(default=(), compare=False)


def score(scenario: str, detector: str, trials: Sequence[Watched]) -> Score:
    """Judge a detector by its trials of one bug, of which each showed what it should."""

    def judged(found: Found, reason: str = "", **more: Any) -> Score:
        return Score(scenario, detector, found, reason, trials=trials, **more)

    buggy = [one for one in trials if one.symptom]
    if not buggy or len(buggy) == len(trials):
        return judged(Found.NO_ANSWER, "not every variant showed what is documented")
    if not any(one.attached for one in buggy):
        return judged(Found.NOT_APPLICABLE)
    if changed := _first(one.changed for one in trials):
        return judged(Found.DISTURBS, changed)
    wrong = {one.variant: one for one in trials if one.alarms and not one.symptom}
    if wrong:
        text = f"{', '.join(wrong)}: {next(iter(wrong.values())).text}"
        if not all(one.alarms for one in buggy):
            text += "; and silent with the bug"
        return judged(Found.FALSE_ALARM, text, false_alarms=tuple(sorted(wrong)))
    if error := _first(one.error for one in trials):
        return judged(Found.NO_ANSWER, _where(error))
    silent = [one for one in buggy if not one.alarms]
    if silent:
        alarmed = len(buggy) - len(silent)
        return judged(Found.MISSED, f"in {alarmed} of {len(buggy)} trials" if alarmed else "")
    first = buggy[0]
    late = None if first.since is None or first.first is None else first.first - first.since
    return judged(Found.DETECTED, first.text, step=first.first, late=late)


def _where(error: str) -> str:
    """The last line of a traceback, and the line of the detector that it names."""
    *lines, last = error.strip().splitlines()
    place = next((line.strip() for line in reversed(lines) if line.startswith('  File "')), "")
    return f"{last} ({place})" if place else last


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")
