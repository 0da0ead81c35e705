"""Starts trainings on forked ranks under guard, and reads what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.system.files import ROOT


@dataclass
class Run:
    """A training that has ended."""

    codes: list[int]
    """The exit codes of its ranks."""
    logs: list[str]
    """What they printed."""
    summary: dict[str, Any]
    alarms: list[dict[str, Any]]
    results: list[dict[str, Any]]
    """The losses, and a digest of the weights, of each rank that trained to its end."""

    @property
    def told(self) -> list[tuple[str, str]]:
        """The check and the kind of each alarm."""
        return [(alarm["check"], alarm["kind"]) for alarm in self.alarms]

    def first_check_from(self, step: int) -> int:
        """The first checked step that is not before a step."""
        return next(checked for checked in self.summary["checked"] if checked >= step)


@contextmanager
def server(site: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that forks ranks, with the packages of ``site`` before those of this Python."""
    path = os.pathsep.join(map(str, filter(None, [site, ROOT])))
    command = [sys.executable, "-m", "tests.guard.server"]
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=variables) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


class Trainer:
    """The process that forks ranks, and the folder of the next run."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder, self.count = process, folder, 0

    def __call__(
        self,
        training: str = "",
        steps: int = 24,
        ranks: int = 2,
        watched: bool = True,
        request: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Run:
        """Train; ``request`` has further words for the server, such as a script instead."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        settings = {"every": 3, "out": str(folder), **settings}
        words = {
            "training": training,
            "steps": steps,
            "ranks": ranks,
            "settings": settings if watched else None,
            "folder": str(folder),
            **(request or {}),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        logs = [(folder / f"log{rank}").read_text() for rank in range(ranks)]
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("result*"))]
        return Run(codes, logs, summary_of(folder), _alarms(folder), results)

    def script(self, file: Path, *arguments: str, **options: Any) -> Run:
        """Run a script on the ranks."""
        return self(request={"script": str(file), "arguments": arguments}, **options)


def summary_of(folder: Path, name: str = "summary.json") -> dict[str, Any]:
    """The summary in a folder of a report; empty without one."""
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else {}


def _alarms(folder: Path) -> list[dict[str, Any]]:
    path = folder / "alarms.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
