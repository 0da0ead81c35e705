"""A detector whose alarms are the bugs that guard knows at the first step, before it compares
anything: ``python -m harness score tests/guard/known_triggers.py:Detector scenario=NAME`` shows
whether guard names a bug where it is set off, and nowhere else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.rank import guard_detector
from harness.rank.guard.settings import Settings
from harness.training.guard import known


class Detector(guard_detector.Detector):
    """guard with the catalogue, and without its alarms."""

    def record(self, path: Path) -> None:
        file = Path(tempfile.mkdtemp(), "known.json")
        known.write(file)
        self.settings = Settings(every=1, quiet=True, known=str(file))
        super().record(path)

    def judge(self, run: Path) -> list[Any]:
        """The bugs that are certain, by rank 0 of each launch."""
        summaries = [json.loads(file.read_text()) for file in sorted(run.glob("*/summary.json"))]
        bugs = {b["name"] for s in summaries for b in s.get("known_bugs", ()) if b["certain"]}
        return [SimpleNamespace(text=name, step=0, where="rank 0") for name in sorted(bugs)]
