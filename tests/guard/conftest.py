"""The fixture that trains under guard."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.guard.commands import TRAIN
from tests.sandbox import Sandbox


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


class Trainer:
    """The process that forks ranks, and the folder of the next run."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self.server, self.folder, self.count = server, folder, 0

    def __call__(
        self,
        training: str = "",
        steps: int = 24,
        ranks: int = 2,
        harm: str = "",
        watched: bool = True,
        script: str = "",
        arguments: Sequence[str] = (),
        **settings: Any,
    ) -> Run:
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        settings = {"every": 3, "out": str(folder), **settings}
        request = {
            "training": training,
            "steps": steps,
            "ranks": ranks,
            "harm": harm,
            "settings": settings if watched else None,
            "folder": str(folder),
            **({"script": script, "arguments": list(arguments)} if script else {}),
        }
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        codes = json.loads(self.server.stdout.readline())
        logs = [(folder / f"log{rank}").read_text() for rank in range(ranks)]
        return Run(codes, logs, _summary(folder), _alarms(folder), _results(folder))


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _alarms(folder: Path) -> list[dict[str, Any]]:
    path = folder / "alarms.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result*"))]


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.guard.server"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def under_guard(server: subprocess.Popen[str], tmp_path: Path) -> Trainer:
    """Runs a training on forked ranks under guard: ``under_guard("ddp clip")``."""
    return Trainer(server, tmp_path)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Where guarded commands run. One for all tests, as the file with the bugs of the catalogue is
    written once."""
    folder = tmp_path_factory.mktemp("a folder with spaces")
    sandbox = Sandbox.under(folder, folder / "cache")
    (sandbox.cwd / "train.py").write_text(TRAIN)
    yield sandbox
    sandbox.end()
