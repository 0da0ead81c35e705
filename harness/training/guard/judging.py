"""Judges the posts of a training again, which guard kept, and compares the faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge, left_alarms
from harness.rank.guard.packing import unpacked
from harness.rank.guard.posts import Post
from harness.rank.guard.saved_states import SavedStates
from harness.system.errors import Inconclusive, UserError
from harness.system.text import one_line
from harness.training.guard.report import POSTS, Report

Fault = tuple[int, str, str]
"""The number of an optimizer, and an alarm's check and kind."""


@dataclass(frozen=True)
class Judging:
    """What the posts say now, beside what the report says."""

    checks: int
    """Judged checks of steps."""
    now: Mapping[Fault, str]
    """The text of the first alarm of each fault."""
    before: Mapping[Fault, str]
    in_no_post: tuple[str, ...] = ()
    """What was told at the end of the training, and cannot be judged again."""

    @property
    def is_same(self) -> bool:
        return set(self.now) == set(self.before)

    def lines(self) -> list[str]:
        """The comparison as text."""
        gone = [f"only in the report: {self.before[f]}" for f in self.before if f not in self.now]
        new = [f"only now: {self.now[f]}" for f in self.now if f not in self.before]
        summary = f"the same {len(self.now)}" if self.is_same else f"{len(self.now)}"
        heading = f"judged {self.checks} checks again: {summary} faults"
        late = [f"told at the end, and in no post: {text}" for text in self.in_no_post]
        return [one_line(line) for line in (heading, *gone, *new, *late)]


def judged(report: Report, checks: Iterable[str]) -> Judging:
    """Judge the posts in the folder of a report. ``checks`` are those that the training had."""
    posts = [_read(file) for file in sorted(report.folder.glob(POSTS))]
    if not posts:
        raise UserError(f"{report.folder} has no posts: guard keeps them with --keep-posts")
    groups: dict[tuple[int, int], list[Post]] = {}
    for post in posts:
        groups.setdefault((post.optimizer, post.check), []).append(post)
    saved = SavedStates(str(report.folder), print).states
    memories: dict[int, Memory] = {}
    faults_now: dict[Fault, str] = {}
    for (optimizer, _), group in sorted(groups.items()):
        group.sort(key=lambda post: post.rank)
        for alarm in judge(group, memories.setdefault(optimizer, Memory(saved=saved))):
            if alarm.check in checks:
                text = f"step {group[0].step}: {alarm.check}: {alarm.text}"
                faults_now.setdefault((optimizer, alarm.check, alarm.kind), text)
    for memory in memories.values():
        for alarm in left_alarms(memory):
            if alarm.check in checks:
                text = f"step {alarm.step or posts[-1].step}: {alarm.check}: {alarm.text}"
                faults_now.setdefault((0, alarm.check, alarm.kind), text)
    before = {_fault(fault): _text(fault) for fault in report.faults}
    late = {_fault(f) for f in report.faults if f.get("at_end")} - set(faults_now)
    compared = {fault: text for fault, text in before.items() if fault not in late}
    return Judging(len(groups), faults_now, compared, tuple(before[fault] for fault in late))


def _fault(fault: Mapping[str, Any]) -> Fault:
    return int(fault["optimizer"]), str(fault["check"]), str(fault["kind"])


def _text(fault: Mapping[str, Any]) -> str:
    return f"step {fault['step']}: {fault['check']}: {fault['text']}"


def _read(file: Path) -> Post:
    try:
        return unpacked(file.read_bytes())
    except Exception as error:  # whatever its bytes make of the JSON and the tensors
        raise Inconclusive(f"{file} is damaged: {one_line(str(error))}") from None
