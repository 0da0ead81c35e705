"""Reads what guard wrote of a training: its summary, its alarms and its posts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.system.errors import Inconclusive, UserError
from harness.system.text import count, one_line

SUMMARY, ALARMS, POSTS = "summary.json", "alarms.jsonl", "*.post"


@dataclass(frozen=True)
class Report:
    """The report of a training in a folder. What it contains may come from anybody."""

    folder: Path
    summary: Mapping[str, Any]
    """Empty if the training was killed, so that nobody wrote one."""
    alarms: tuple[Mapping[str, Any], ...]
    """All that were told, also by an earlier training with the same folder."""

    @property
    def faults(self) -> list[Mapping[str, Any]]:
        """The faults of the training, first ones first; without a summary, the alarms."""
        faults = self.summary.get("faults", ()) if self.summary else self.alarms
        return sorted(faults, key=lambda fault: fault["step"])

    @property
    def bugs(self) -> list[Mapping[str, Any]]:
        """The bugs of the catalogue that the training certainly sets off."""
        return [bug for bug in self.summary.get("known_bugs", ()) if bug["certain"]]

    @property
    def checked(self) -> list[int]:
        """The checked steps, and those of alarms."""
        steps = {int(fault["step"]) for fault in self.faults}
        return sorted({int(step) for step in self.summary.get("checked", ())} | steps)


def read(folder: Path) -> Report:
    """The report in a folder. Raises UserError if there is none, and Inconclusive if it is
    damaged."""
    summary, alarms = folder / SUMMARY, folder / ALARMS
    if not (summary.is_file() or alarms.is_file()):
        raise UserError(
            f"{folder} has no {SUMMARY} and no {ALARMS}: name the folder of guard --out"
        )
    return Report(folder, _summary(summary), tuple(_alarms(alarms)))


def _summary(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        content: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        _refuse_strangers(content.get("faults", ()))
        for bug in content.get("known_bugs", ()):
            bug["certain"], bug["name"], bug["title"], bug["remedy"]
        int(content["steps"]), list(content["checked"])
        float(content["cost_percent"]), float(content["check_ms"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Inconclusive(f"{file} is damaged: {one_line(str(error))}") from None
    return content


def _alarms(file: Path) -> list[Mapping[str, Any]]:
    if not file.is_file():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        # A training that is killed while it writes leaves half a line at the end.
        alarms = [json.loads(line) for line in lines if line.endswith("}")]
        _refuse_strangers(alarms)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Inconclusive(f"{file} is damaged: {one_line(str(error))}") from None
    return alarms


def _refuse_strangers(faults: Any) -> None:
    for fault in faults:
        int(fault["step"]), str(fault["check"]), str(fault["text"]), float(fault["size"])
        list(fault["ranks"]), list(fault["parameters"])


def lines(report: Report) -> list[str]:
    """The summary of a training as text."""
    summary = report.summary
    if summary:
        faults = count(len(report.faults), "fault") if report.faults else "no alarm"
        text = [
            f"{summary['steps']} steps, {len(summary['checked'])} checked; cost "
            f"{summary['cost_percent']:.2f} % of the time ({summary['check_ms']:.1f} ms a check); "
            f"{faults}"
        ]
    else:
        text = ["no summary: the training was killed, or runs still"]
    text += [f"KNOWN BUG {bug['name']}: {bug['title']}; {bug['remedy']}" for bug in report.bugs]
    text += [sentence(fault) for fault in report.faults]
    text += [f"not seen: {reason}" for reason in summary.get("not_seen", ())]
    text += [f"note: {note}" for note in summary.get("notes", ())]
    if summary.get("error"):
        text.append(f"guard stopped: {summary['error']}")
    return [one_line(line) for line in text]


def sentence(fault: Mapping[str, Any]) -> str:
    """A fault in one line, as rank 0 told it, and how often it came."""
    ranks = ", ".join(map(str, fault["ranks"]))
    who = f"rank{'s' if len(fault['ranks']) > 1 else ''} {ranks}" if ranks else "all ranks"
    times = fault.get("times", 1)
    again = f" ({times} times, until step {fault['last_step']})" if times > 1 else ""
    bugs = f" (perhaps the bug {', '.join(fault['bugs'])})" if fault.get("bugs") else ""
    return f"ALARM: step {fault['step']}, {who}: {fault['check']}: {fault['text']}{again}{bugs}"
