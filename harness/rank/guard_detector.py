"""guard as a detector: ``score`` runs on each bug what ``guard`` injects into a training.

It watches the process, and judges while the training runs. Its report is its trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.rank.guard.guard import Guard
from harness.rank.guard.settings import Settings

ALARMS, SUMMARY = "alarms.jsonl", "summary.json"


class Detector:
    """guard, armed as often as it can be. It knows no bugs: naming a known one is no alarm."""

    settings = Settings(every=1, quiet=True)

    def record(self, path: Path) -> None:
        """Watch this process from now on. ``path`` is the folder of the report."""
        self._guard = Guard(Settings(**{**vars(self.settings), "out": str(path)}))
        self._guard.install()

    def attach(self, model: Any, optimizer: Any, loader: Any = None, *, group: Any = None) -> None:
        """Nothing to do: guard finds what is trained itself."""

    def close(self) -> None:
        """Wait for open checks, and write the summary."""
        self._guard.close()

    def judge(self, run: Path) -> list[SimpleNamespace]:
        """The alarms of a run. Raises if guard stopped in one of its processes."""
        for file in sorted(run.glob(f"*/{SUMMARY}")):
            summary = json.loads(file.read_text())
            stopped = [note for note in summary["notes"] if "stopped" in note]
            if error := summary["error"] or " ".join(stopped):
                raise RuntimeError(error)
        return list(_alarms(run))


class Budget(Detector):
    """guard with its usual budget."""

    settings = Settings(quiet=True)


def _alarms(run: Path) -> Iterator[SimpleNamespace]:
    for file in sorted(run.glob(f"*/{ALARMS}")):
        for line in file.read_text().splitlines():
            alarm = json.loads(line)
            text, where = f"{alarm['check']}: {alarm['text']}", f"ranks {alarm['ranks']}"
            yield SimpleNamespace(text=text, step=alarm["step"], where=where)
