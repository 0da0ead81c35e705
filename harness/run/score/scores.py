"""What a detector did on one bug, from the trials with it and without it.

An alarm in a variant without the bug of its scenario can be right, because a release has many bugs.
It is another bug's alarm if the detector gave the same alarm where it detected that bug, and if the
variant's release has that bug. It is not if the fixed variant does not give it, although its
release has that bug, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import FIXED
from harness.bugs.lookup import lookup
from harness.bugs.results import Status
from harness.system.text import StrEnum


class Detection(StrEnum):
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
    def first_step(self) -> int | None:
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
    found: Detection
    reason: str = ""
    step: int | None = None
    """At which the first alarm came, counted in steps of the optimizer."""
    late: int | None = None
    """By how many steps the alarm came after the symptom."""
    false_alarms: tuple[str, ...] = ()
    """The variants without the bug in which it gave an alarm."""
    trials: Sequence[Watched] = field(default=(), compare=False)


def score(
    scenario: str, detector: str, trials: Sequence[Watched], failures: Sequence[str] = ()
) -> Score:
    """Judge a detector by the trials of one bug that went as documented. ``failures`` contain the
    variant and the reason of each other trial."""

    def judged(detection: Detection, reason: str = "", **more: Any) -> Score:
        return Score(scenario, detector, detection, reason, trials=trials, **more)

    buggy = [one for one in trials if one.symptom]
    if not buggy or len(buggy) == len(trials):
        missing = "the bug" if not buggy else "a training without the bug"
        return judged(
            Detection.NO_ANSWER, _first_nonempty(failures) or f"no variant showed {missing}"
        )
    if not any(one.attached for one in buggy) and not any(one.alarms for one in trials):
        return judged(Detection.NOT_APPLICABLE)
    if changed := _first_nonempty(one.changed for one in trials):
        return judged(Detection.DISTURBS, changed)
    false_trials = {one.variant: one for one in trials if one.alarms and not one.symptom}
    if false_trials:
        text = f"{', '.join(false_trials)}: {next(iter(false_trials.values())).text}"
        if not all(one.alarms for one in buggy):
            text += "; and silent with the bug"
        return judged(Detection.FALSE_ALARM, text, false_alarms=tuple(sorted(false_trials)))
    if error := _first_nonempty(one.error for one in trials):
        return judged(Detection.NO_ANSWER, _where(error))
    silent = [one for one in buggy if not one.alarms]
    if silent:
        alarmed = len(buggy) - len(silent)
        return judged(Detection.MISSED, f"in {alarmed} of {len(buggy)} trials" if alarmed else "")
    trial = buggy[0]
    late = (
        None if trial.since is None or trial.first_step is None else trial.first_step - trial.since
    )
    return judged(Detection.DETECTED, trial.text, step=trial.first_step, late=late)


def _where(error: str) -> str:
    """The last line of a traceback, and the line of the detector that it names."""
    *lines, message = error.strip().splitlines()
    place = next((line.strip() for line in reversed(lines) if line.startswith('  File "')), "")
    return f"{message} ({place})" if place else message


def _first_nonempty(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")


Alarm = Mapping[str, Any]


def without_others(scores: Sequence[Score]) -> list[Score]:
    """The scores, judged without the alarms of other bugs."""
    detections = [
        (s.detector, s.scenario, {_kind(a) for t in s.trials if t.symptom for a in t.alarms})
        for s in scores
        if s.found is Detection.DETECTED
    ]
    return [
        _judged(each, [(name, texts) for d, name, texts in detections if d == each.detector])
        if each.found is Detection.FALSE_ALARM
        else each
        for each in scores
    ]


def _kind(alarm: Alarm) -> str:
    """The text of an alarm without numbers."""
    return re.sub(r"-?\d[\d.e+-]*", "#", str(alarm["text"]))


def _judged(old_score: Score, texts_by_bug: Sequence[tuple[str, set[str]]]) -> Score:
    other_bugs: dict[str, None] = {}
    fixed = [trial for trial in old_score.trials if trial.variant == FIXED]
    texts_by_bug = [
        (bug, {text for text in texts if all(_would_give(one, bug, text) for one in fixed)})
        for bug, texts in texts_by_bug
    ]
    trials = [
        _without_alarms_of_others(trial, texts_by_bug, other_bugs) for trial in old_score.trials
    ]
    if not other_bugs:
        return old_score
    judged = score(old_score.scenario, old_score.detector, trials)
    return replace(
        judged,
        reason=judged.reason or f"alarms of {', '.join(other_bugs)}",
        trials=old_score.trials,
    )


def _would_give(trial: Watched, bug: str, text: str) -> bool:
    """Whether nothing in a trial says that an alarm is not that of a bug."""
    return any(_kind(alarm) == text for alarm in trial.alarms) or not _has(bug, trial.releases)


def _without_alarms_of_others(
    trial: Watched, texts_by_bug: Iterable[tuple[str, set[str]]], other_bugs: dict[str, None]
) -> Watched:
    """A trial without the alarms of other bugs, whose names go to ``other_bugs``."""
    candidates = [(bug, texts) for bug, texts in texts_by_bug if _has(bug, trial.releases)]
    alarms = []
    for alarm in trial.alarms:
        others = [bug for bug, texts in candidates if _kind(alarm) in texts]
        other_bugs.update(dict.fromkeys(others))
        alarms += [] if others else [alarm]
    return replace(trial, alarms=alarms)


def _has(bug: str, releases: Mapping[str, str]) -> bool:
    deciding = [package for package in catalog.scenario(bug).deciding if package in releases]
    if not deciding:
        return False
    return lookup(bug, {p: releases[p] for p in deciding}).status is Status.AFFECTED
