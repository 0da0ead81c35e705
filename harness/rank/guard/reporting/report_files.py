"""The files of a report, which rank 0 writes into a folder: whole ones, and one for each run."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..sentences import say

SUMMARY, ALARMS = "summary.json", "alarms.jsonl"


class ReportFiles:
    """The files of this run. An earlier run's summary in the folder gets a number: a restart or
    another training keeps it. A folder that cannot be written is said once."""

    def __init__(self, folder: str) -> None:
        self.run = _new_run()
        """Tells this run from others in the folder."""
        self._folder = folder or os.devnull
        self._name = SUMMARY
        self._failed = not folder

    def begin(self) -> None:
        """Make room for this run, whose process may be forked by one that trains nothing."""
        self.run = _new_run()
        with self._writing():
            if os.path.exists(self._path(SUMMARY)):
                os.replace(self._path(SUMMARY), self._path(self._free_name()))

    def append(self, alarm: dict[str, Any]) -> None:
        """Add an alarm to those of the folder."""
        line = json.dumps({**alarm, "run": self.run, "time": now()}) + "\n"
        with self._writing(), open(self._path(ALARMS), "a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a full disk has cut the line before
                    file.write(b"\n")
            file.write(line.encode())

    def write(self, summary: dict[str, Any]) -> None:
        """Write the summary of this run so far, in place of its last one."""
        content = json.dumps({"run": self.run, "time": now(), **summary}, indent=1) + "\n"
        with self._writing():
            if self._name == SUMMARY and self._owner(SUMMARY) not in ("", self.run):
                # Another training with this folder has begun, and has put this summary aside
                names = (name for name in self._summaries() if self._owner(name) == self.run)
                self._name = next(names, None) or self._free_name()
            part = self._path(f"{self._name}.{self.run}")
            with open(part, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(part, self._path(self._name))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A folder that cannot be written, as on a full disk, is said once: the checks go on."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                say(f"the report cannot be written: {error.strerror}: {self._folder}")
            self._failed = True

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _summaries(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if _number(name)]

    def _free_name(self) -> str:
        return f"summary-{1 + max([0, *map(_number, self._summaries())])}.json"

    def _owner(self, name: str) -> str:
        """The run that wrote a summary; empty if there is none that can be read."""
        try:
            with open(self._path(name), encoding="utf-8") as file:
                return str(json.load(file).get("run", "?"))
        except (OSError, ValueError, AttributeError):
            return ""


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


def now() -> str:
    """The time, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _number(name: str) -> int:
    """The number of an earlier run's summary; 0 for another file."""
    number = name[len("summary-") : -len(".json")]
    is_numbered = name == f"summary-{number}.json" and number.isdigit()
    return int(number) if is_numbered else 0
