"""Reads what guard wrote of a training: its summary, its alarms and its posts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.system.errors import Inconclusive, UserError
from harness.system.text import count, one_line

SUMMARY, ALARMS, POSTS = "summary.json", "alarms.jsonl", "*.post"


@dataclass(frozen=True)
class Report:
    """The report of a training in a folder."""

    folder: Path
    summary: Mapping[str, Any]
    """Empty if the training was killed, so that nobody wrote one."""
    alarms: tuple[Mapping[str, Any], ...]
    """The first time of each fault."""

    @property
    def faults(self) -> tuple[Mapping[str, Any], ...]:
        """The faults, with how often each came if the summary says so."""
        return tuple(self.summary.get("faults", ())) or self.alarms

    @property
    def posts(self) -> list[Path]:
        return sorted(self.folder.glob(POSTS))
