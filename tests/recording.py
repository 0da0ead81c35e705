"""Recorded runs to change: real runs on the CPU, without their logs and checkpoints.

``python -m tests.record`` records them.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.bugs.results import Result, RunResult
from harness.rank import run_folder
from harness.rank.exits import EXIT_FILE
from harness.rank.run_folder import RUN_FILE, VERDICT_FILE
from harness.run.grade import grade, grade_trial, run_of


class Unpacked(Mapping[str, Path]):
    """The recorded runs by scenario; each is unpacked when it is first used."""

    def __init__(self) -> None:
        self.names = [
            n for n in catalog.names() if (catalog.folder(n) / run_folder.RECORDED).is_file()
        ]
        self.held = ExitStack()
        atexit.register(self.held.close)
        self.folders: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self.folders:
            folder = self.held.enter_context(run_folder.recorded(name))
            if folder is None:
                raise KeyError(name)
            self.folders[name] = folder
        return self.folders[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@cache
def recorded() -> Mapping[str, Path]:
    """The recorded run of each scenario that has one, by the scenario's name."""
    return Unpacked()


RECORDED = recorded()["bf16_clip"]


class Recording:
    """A copy of a recorded run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def grade(self) -> RunResult:
        return grade(self.folder)

    def trial(self, variant: str) -> Result:
        """The result of one trial; reads only its folder and run.json."""
        return grade_trial(run_of(self.folder), self.folder, variant)[0]

    def rank_file(self, variant: str, rank: int = 1) -> Path:
        return self.folder / variant / f"rank_{rank}.jsonl"

    @contextmanager
    def run(self) -> Iterator[dict[str, Any]]:
        """The content of run.json, to change in place."""
        with changing(self.folder / RUN_FILE) as run:
            yield run

    @contextmanager
    def exit(self, variant: str) -> Iterator[dict[str, Any]]:
        """The content of a trial's exit.json, to change in place."""
        with changing(self.folder / variant / EXIT_FILE) as exit_:
            yield exit_

    @contextmanager
    def lines(self, variant: str, rank: int) -> Iterator[list[str]]:
        """The lines of a rank's file, to change in place."""
        file = self.rank_file(variant, rank)
        lines = file.read_text().splitlines(keepends=True)
        yield lines
        file.write_text("".join(lines), errors="surrogateescape")

    @contextmanager
    def records(self, variant: str, rank: int = 0) -> Iterator[list[dict[str, Any]]]:
        """A rank's records, to change in place.

        ``variant`` may also name a launch: ``buggy/resume``.
        """
        file = self.rank_file(variant, rank)
        records = read(file)
        yield records
        write(file, records)

    @contextmanager
    def record(self, variant: str, kind: str, rank: int = 0) -> Iterator[dict[str, Any]]:
        """The first record of a kind, to change in place."""
        with self.records(variant, rank) as records:
            yield next(record for record in records if record["kind"] == kind)


def stored_verdict(folder: Path) -> dict[str, Any]:
    """The stored verdict of a run, without the seconds of its steps."""
    verdict: dict[str, Any] = json.loads((folder / VERDICT_FILE).read_text())
    del verdict["seconds"]
    return verdict


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write(file: Path, records: list[dict[str, Any]]) -> None:
    """Replace the records of a file."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


@contextmanager
def changing(file: Path) -> Iterator[dict[str, Any]]:
    """The content of a JSON file, to change in place."""
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))
