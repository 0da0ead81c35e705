"""Alarms that are right: a variant without its own bug may have a release with another one.

A release has many bugs. An alarm in a variant without the bug of its scenario is another bug's, if
the detector gave the same alarm where it detected that one, and the variant's release has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness import catalog
from harness.ranges.lookup import lookup
from harness.score.scores import Found, Score, Watched, score
from harness.sweep.cell import Status

Alarm = Mapping[str, Any]


def without_others(scores: Sequence[Score]) -> list[Score]:
    """The scores, judged without the alarms of other bugs."""
    known = [(s.detector, s.scenario, _texts(s)) for s in scores if s.found is Found.DETECTED]
    return [
        _judged(each, [(name, texts) for d, name, texts in known if d == each.detector])
        if each.found is Found.FALSE_ALARM
        else each
        for each in scores
    ]


def _texts(one: Score) -> set[str]:
    return {_kind(a) for trial in one.trials if trial.symptom for a in trial.alarms}


def _kind(alarm: Alarm) -> str:
    """The text of an alarm without numbers."""
    return re.sub(r"-?\d[\d.e+-]*", "#", str(alarm["text"]))


def _judged(one: Score, known: Sequence[tuple[str, set[str]]]) -> Score:
    found: dict[str, None] = {}
    trials = [_own(trial, known, found) for trial in one.trials]
    if not found:
        return one
    judged = score(one.scenario, one.detector, trials)
    return replace(
        judged, reason=judged.reason or f"alarms of {', '.join(found)}", trials=one.trials
    )


def _own(trial: Watched, known: Iterable[tuple[str, set[str]]], found: dict[str, None]) -> Watched:
    """A trial without the alarms of other bugs, whose names go to ``found``."""
    there = [(bug, texts) for bug, texts in known if _has(bug, trial.releases)]
    kept = []
    for alarm in trial.alarms:
        others = [bug for bug, texts in there if _kind(alarm) in texts]
        found.update(dict.fromkeys(others))
        kept += [] if others else [alarm]
    return replace(trial, alarms=kept)


def _has(bug: str, releases: Mapping[str, str]) -> bool:
    deciding = [package for package in catalog.scenario(bug).deciding if package in releases]
    if not deciding:
        return False
    return lookup(bug, {p: releases[p] for p in deciding}).status is Status.AFFECTED
