"""What guard tells: lines on stderr, and JSON in the folder of the report; and what alarms do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..posting.posts import Alarm
from ..sentences import alarm_in_words, say
from ..settings import Settings, report_in
from .report_files import ReportFiles

MOST_STEPS = 1000
"""Checked steps that a report lists: the last ones."""
MOST_PARAMETERS = 200
"""Parameters that a report lists of a fault."""


@dataclass
class Fault:
    """An alarm that was told, and how often it came."""

    step: int
    optimizer: int
    alarm: Alarm
    times: int = 1
    last_step: int = 0
    bugs: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        facts = {name: value for name, value in self.__dict__.items() if name != "alarm"}
        alarm = asdict(self.alarm)
        return {**alarm, "parameters": alarm["parameters"][:MOST_PARAMETERS], **facts}


class FaultReport:
    """The faults of a training, each told once, by rank 0."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.faults: dict[tuple[int, str, str], Fault] = {}
        self.files = ReportFiles(settings.out)
        self.checks = 0
        """Judged checks."""
        self.steps: deque[int] = deque(maxlen=MOST_STEPS)
        """The last checked steps."""
        self.bugs: list[dict[str, Any]] = []
        """Known bugs of the catalogue that this run sets off."""
        self._blind = set[str]()
        """What was said not to be seen."""

    def note_check(self, step: int) -> None:
        """Count a check that was judged."""
        self.steps.append(step)
        self.checks += 1

    def tell(self, step: int, optimizer: int, alarms: list[Alarm]) -> list[str]:
        """Tell the new faults of a step, and count the others. Returns what was told."""
        lines = []
        for alarm in alarms:
            if self.settings.checks and alarm.check not in self.settings.checks:
                continue
            key = optimizer, alarm.check, alarm.kind
            if key in self.faults:
                self.faults[key].times += 1
                self.faults[key].last_step = step
                continue
            step_of_fault = alarm.step or step
            bugs = [
                bug["name"]
                for bug in self.bugs
                if not alarm.signs.isdisjoint(bug.get("signature", ()))
            ]
            fault = Fault(step_of_fault, optimizer, alarm, 1, step, bugs)
            self.faults[key] = fault
            text = alarm_in_words(step_of_fault, alarm.ranks, alarm.check, alarm.text, bugs)
            lines.append(text)
            say(f"ALARM: {text}")
            report_in("alarm")
            self.files.append(fault.to_json())
            self._act(fault)
        return lines

    def say(self, text: str) -> None:
        """Print a line that is no alarm, unless ``quiet``."""
        if not self.settings.quiet:
            say(text)

    def say_not_seen(self, sentences: Iterable[str]) -> None:
        """Say what is not compared, each sentence once in a run."""
        for sentence in sentences:
            if sentence not in self._blind:
                self._blind.add(sentence)
                self.say(f"not seen: {sentence}")

    def _act(self, fault: Fault) -> None:
        action, _, argument = self.settings.on_alarm.partition(":")
        if action == "command":
            try:
                subprocess.Popen(
                    ["/bin/sh", "-c", argument],
                    env={**os.environ, "GUARD_ALARM": json.dumps(fault.to_json())},
                )
            except OSError as error:
                say(f"the command of --on-alarm did not start: {error.strerror}")
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
