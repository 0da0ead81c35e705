"""Reads what guard wrote of a training: its summary and its alarms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from harness.rank.guard.reporting.report_files import ALARMS, SUMMARY
from harness.rank.guard.sentences import alarm_in_words, known_bug, progress
from harness.system.errors import Inconclusive, UserError
from harness.system.text import one_line

EARLIER = "summary-*.json"
Key = tuple[Any, Any, Any]
"""What makes two alarms the same fault."""


@dataclass(frozen=True)
class GuardReport:
    """The report of a training. What it contains may come from anybody."""

    summary: Mapping[str, Any]
    """Empty if the training was killed before its first check was judged."""
    alarms: tuple[Mapping[str, Any], ...]
    """All that were told, also by an earlier training with the same folder."""
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The summaries of earlier trainings with the same folder, and of restarts, by their file."""

    @property
    def faults(self) -> list[Mapping[str, Any]]:
        """The faults of the training, first ones first; without a summary, the alarms."""
        if not self.summary:
            return sorted(self.alarms, key=lambda fault: fault["step"])
        faults = list(self.summary["faults"])
        if not has_ended(self.summary):  # killed after an alarm, before the next summary
            run, listed = self.summary.get("run"), set(map(_key, faults))
            of_run = (alarm for alarm in self.alarms if alarm.get("run") == run)
            faults += [alarm for alarm in of_run if _key(alarm) not in listed]
        return sorted(faults, key=lambda fault: fault["step"])

    @property
    def bugs(self) -> list[Mapping[str, Any]]:
        """The bugs of the catalogue that the training certainly sets off."""
        return [bug for bug in self.summary.get("known_bugs", ()) if bug["certain"]]


def has_ended(summary: Mapping[str, Any]) -> bool:
    """Whether the training ended after this summary was written, or was killed, or runs still."""
    return bool(summary.get("ended", True))


def _key(fault: Mapping[str, Any]) -> Key:
    return fault.get("optimizer"), fault["check"], fault.get("kind")


def read(folder: Path) -> GuardReport:
    """The report in a folder. Raises UserError if there is none, and Inconclusive if it is
    damaged."""
    summary, alarms = folder / SUMMARY, folder / ALARMS
    if not (summary.is_file() or alarms.is_file()):
        raise UserError(
            f"{folder} has no {SUMMARY} and no {ALARMS}: name the folder of guard --out"
        )
    by_number = sorted(folder.glob(EARLIER), key=lambda file: (len(file.name), file.name))
    earlier = {file.name: _summary(file) for file in by_number}
    return GuardReport(_summary(summary), tuple(_alarms(alarms)), earlier)


DAMAGES = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    RecursionError,
    ArithmeticError,
)
"""What a damaged file of a report, also one that somebody nested deeply, makes of its reader."""


def damaged(file: Path, error: Exception) -> Inconclusive:
    """The error for a file of a report that cannot be read."""
    why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return Inconclusive(f"{file} is damaged: {one_line(why)}")


def _summary(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        content: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        _refuse_strangers(content.get("faults", ()))
        for bug in content.get("known_bugs", ()):
            bug["certain"], bug["name"], bug["title"], bug["remedy"]
        int(content["steps"]), list(content["checked"]), list(content["faults"])
        float(content["cost_percent"]), float(content["check_ms"])
    except DAMAGES as error:
        raise damaged(file, error) from None
    return content


def _alarms(file: Path) -> list[Mapping[str, Any]]:
    if not file.is_file():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        # A training that is killed while it writes leaves half a line at the end.
        alarms = [json.loads(line) for line in lines if line.endswith("}")]
        _refuse_strangers(alarms)
    except DAMAGES as error:
        raise damaged(file, error) from None
    return alarms


def _refuse_strangers(faults: Any) -> None:
    for fault in faults:
        int(fault["step"]), str(fault["check"]), str(fault["text"]), float(fault["size"])
        list(fault["ranks"]), list(fault["parameters"])


NO_SUMMARY = "no summary: the training was killed before its first check, or runs still"


def _heading(summary: Mapping[str, Any], faults: int | None = None) -> str:
    """A training in one line, with the faults that its summary has, or with so many."""
    faults = len(summary["faults"]) if faults is None else faults
    checks = summary.get("checks", len(summary["checked"]))
    cost = summary["cost_percent"], summary["check_ms"]
    text = progress(summary["steps"], summary.get("restarts", 0), checks, *cost, faults)
    if summary.get("exit_code"):
        text += f"; the command ended with code {summary['exit_code']}"
    if has_ended(summary):
        return text
    when = f" at {summary['time']}" if summary.get("time") else ""
    return f"{text}; the training was killed, or runs still: this was written{when}"


def unended(folder: Path) -> str:
    """The last summary of a training that wrote none at its end, in one line. Empty without one, or
    if it ended. Raises Inconclusive if it is damaged."""
    summary = _summary(folder / SUMMARY)
    return "" if not summary or has_ended(summary) else _heading(summary)


def lines(report: GuardReport) -> list[str]:
    """The summary of a training as text."""
    summary = report.summary
    text = [
        *(f"earlier, in {name}: {_heading(other)}" for name, other in report.earlier.items()),
        _heading(summary, len(report.faults)) if summary else NO_SUMMARY,
    ]
    text += [known_bug(bug) for bug in report.bugs]
    text += [sentence(fault) for fault in report.faults]
    text += [f"not seen: {reason}" for reason in summary.get("not_seen", ())]
    text += [f"note: {note}" for note in summary.get("notes", ())]
    if summary.get("error"):
        text.append(f"guard stopped: {summary['error']}")
    return [one_line(line) for line in text]


def sentence(fault: Mapping[str, Any]) -> str:
    """A fault in one line, as rank 0 told it, and how often it came."""
    times = fault.get("times", 1)
    again = f" ({times} times, until step {fault['last_step']})" if times > 1 else ""
    text, bugs = f"{fault['text']}{again}", fault.get("bugs") or ()
    return f"ALARM: {alarm_in_words(fault['step'], fault['ranks'], fault['check'], text, bugs)}"


# -- what ranks write; they import nothing of this module, and docs/schemas has it as schemas --


class FaultJson(TypedDict):
    """A fault that was told."""

    check: str
    kind: str
    text: str
    ranks: list[int]
    size: float
    parameters: list[str]
    """The first 200 of them."""
    factors: list[str]
    """What ``size`` may be in terms of ranks and micro-batches."""
    step: int
    """The step of the alarm."""
    last_step: int
    times: int
    """In how many checks it was there."""
    optimizer: int
    bugs: list[str]
    """Bugs of the catalogue that may be the reason."""


class GuardAlarmJson(FaultJson):
    """A line of ``alarms.jsonl``."""

    run: str
    time: str


class KnownBugJson(TypedDict):
    """A bug of the catalogue that the run may set off."""

    name: str
    title: str
    settings: dict[str, Any]
    code: str
    certain: bool
    packages: dict[str, str]
    remedy: str
    signature: list[str]
    because: str


class FactsJson(TypedDict, total=False):
    """What is there after the first check."""

    releases: dict[str, str]
    settings: dict[str, Any]


class GuardSummaryJson(FactsJson):
    """``summary.json``."""

    run: str
    time: str
    steps: int
    checks: int
    checked: list[int]
    """The last 1000 checked steps."""
    cost_percent: float
    check_ms: float
    faults: list[FaultJson]
    compared: dict[str, int]
    """By check, how much the last one compared."""
    ended: bool
    """False if the training runs, or was killed."""
    exit_code: int
    """That of the command, if it failed; otherwise 0."""
    restarts: int
    setup_s: float
    not_seen: list[str]
    notes: list[str]
    error: str
    known_bugs: list[KnownBugJson]
