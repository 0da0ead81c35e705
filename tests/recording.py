"""Recorded runs to tamper with: real runs on the CPU, without their logs and checkpoints.

Made with ``python -m tests.record``. A change of a file as such is seen by its digests. To see what
grading makes of *records* that say something else, a change is ``sealed``: the digests are made
anew, as if the ranks had written so.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import catalog
from harness.results import RunResult, TrialResult
from harness.trial.grade import grade, grade_trial, run_of
from harness.trial.loaded_files import MADE_FILE
from harness.trial.records import (
    BEGIN,
    CHAIN,
    END,
    EXIT_FILE,
    RUN_FILE,
    VERDICT_FILE,
    Identity,
    digest,
    link,
)


def recorded() -> dict[str, Path]:
    """The recorded run of each scenario that has one, by the scenario's name."""
    folders = {name: catalog.folder(name) / "recorded" for name in catalog.names()}
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


RECORDED = recorded()["bf16_clip"]


def all_recorded(folder: Path) -> Path:
    """A folder of run folders: a copy of every recorded run."""
    for name, run in recorded().items():
        shutil.copytree(run, folder / name)
    return folder


class Recording:
    """A copy of a recorded run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def grade(self) -> RunResult:
        return grade(self.folder)

    def trial(self, variant: str) -> TrialResult:
        """The result of one trial; nothing else but run.json is read."""
        return grade_trial(run_of(self.folder), self.folder, variant)[0]

    def rank_file(self, variant: str, rank: int = 1) -> Path:
        return self.folder / variant / f"rank_{rank}.jsonl"

    def forget_digests(self, variant: str) -> None:
        """Have exit.json say that the ranks left their files as they are now, unchanged else."""
        folder = self.folder / variant
        with self.exit(variant) as exit_:
            exit_["records"] = _digests(folder)

    @contextmanager
    def run(self) -> Iterator[dict[str, Any]]:
        """The content of run.json, to be changed in place; sealed."""
        with changing(self.folder / RUN_FILE) as run:
            yield run
        seal(self.folder)

    @contextmanager
    def exit(self, variant: str) -> Iterator[dict[str, Any]]:
        """The content of a trial's exit.json, to be changed in place."""
        with changing(self.folder / variant / EXIT_FILE) as exit_:
            yield exit_

    @contextmanager
    def lines(self, variant: str, rank: int) -> Iterator[list[str]]:
        """The lines of a rank's file, to be changed in place; exit.json gets its new digest."""
        file = self.rank_file(variant, rank)
        lines = file.read_text().splitlines(keepends=True)
        yield lines
        file.write_text("".join(lines), errors="surrogateescape")
        self.forget_digests(variant)

    @contextmanager
    def records(self, variant: str, rank: int = 0) -> Iterator[list[dict[str, Any]]]:
        """A rank's records, to be changed in place; sealed, and the count at their end is right.

        ``variant`` may name a launch as well: ``buggy/resume``.
        """
        file = self.rank_file(variant, rank)
        records = read(file)
        before = len(records)
        yield records
        if len(records) != before and records and records[-1]["kind"] == END:
            records[-1]["records"] = len(records) - 1
        write(file, records)
        if (file.parent / EXIT_FILE).is_file():
            self.forget_digests(variant)

    @contextmanager
    def record(self, variant: str, kind: str, rank: int = 0) -> Iterator[dict[str, Any]]:
        """The first record of a kind, to be changed in place; sealed."""
        with self.records(variant, rank) as records:
            yield next(record for record in records if record["kind"] == kind)


def stored_verdict(folder: Path) -> dict[str, Any]:
    """The verdict of a run as it was stored, less the seconds that its steps took."""
    told: dict[str, Any] = json.loads((folder / VERDICT_FILE).read_text())
    del told["seconds"]
    return told


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file without their chains."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != CHAIN} for record in records]


def write(file: Path, records: list[dict[str, Any]]) -> None:
    """Write records, each chained to the one before it."""
    before, lines = "", []
    for record in records:
        before = link(before, record)
        lines.append(json.dumps({**record, CHAIN: before}) + "\n")
    file.write_text("".join(lines))


def seal(folder: Path) -> None:
    """Make all digests of a run folder anew, and have each file say that it is of its place."""
    run = json.loads((folder / RUN_FILE).read_text())
    for variant, trial in dict(run["trials"] or {}).items():
        for launch in trial.get("launches", ()):
            if (folder / variant / launch).is_dir():
                _seal_act(folder / variant / launch, _identity(run, variant, launch))


def _identity(run: dict[str, Any], variant: str, launch: str) -> dict[str, Any]:
    """Of a launch, as far as a run.json that may have been spoilt still tells it."""
    trial = run["trials"][variant]
    of = Identity(
        run["run"],
        digest(run),
        run["scenario"],
        variant,
        launch,
        run["seed"],
        digest(trial.get("params")),
        trial.get("ranks"),
    )
    return asdict(of)


def _seal_act(folder: Path, of: dict[str, Any]) -> None:
    for path in folder.glob("rank_*.jsonl"):
        records = read(path)
        if records and records[0]["kind"] == BEGIN:
            records[0].update(of)
        write(path, records)
    for name, more in ((EXIT_FILE, {"records": _digests(folder)}), (MADE_FILE, {})):
        if (folder / name).is_file():
            with changing(folder / name) as content:
                content.update({"of": of, **more})


def _digests(folder: Path) -> dict[str, str]:
    """Of the files that the ranks left in a folder, by rank."""
    return {
        path.stem.removeprefix("rank_"): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("rank_*.jsonl")
    }


@contextmanager
def changing(file: Path) -> Iterator[dict[str, Any]]:
    """The content of a JSON file, to be changed in place."""
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))
