"""Recorded runs to change: real runs on the CPU, without their logs and checkpoints.

``python -m tests.record`` records them. Grading notices a changed file by its digest. To test what
grading makes of other *records*, a change is sealed: all digests are computed again, as if the
ranks had written these records.
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
from harness.trial.records import BEGIN, EXIT_FILE, RUN_FILE, VERDICT_FILE, Identity, digest


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
        """The result of one trial; reads only its folder and run.json."""
        return grade_trial(run_of(self.folder), self.folder, variant)[0]

    def rank_file(self, variant: str, rank: int = 1) -> Path:
        return self.folder / variant / f"rank_{rank}.jsonl"

    def reseal(self, variant: str) -> None:
        """Put the digests of the ranks' files as they are now into exit.json."""
        folder = self.folder / variant
        with self.exit(variant) as exit_:
            exit_["records"] = _digests(folder)

    @contextmanager
    def run(self) -> Iterator[dict[str, Any]]:
        """The content of run.json, to change in place; sealed."""
        with changing(self.folder / RUN_FILE) as run:
            yield run
        seal(self.folder)

    @contextmanager
    def exit(self, variant: str) -> Iterator[dict[str, Any]]:
        """The content of a trial's exit.json, to change in place."""
        with changing(self.folder / variant / EXIT_FILE) as exit_:
            yield exit_

    @contextmanager
    def lines(self, variant: str, rank: int) -> Iterator[list[str]]:
        """The lines of a rank's file, to change in place; exit.json gets the new digest."""
        file = self.rank_file(variant, rank)
        lines = file.read_text().splitlines(keepends=True)
        yield lines
        file.write_text("".join(lines), errors="surrogateescape")
        self.reseal(variant)

    @contextmanager
    def records(self, variant: str, rank: int = 0) -> Iterator[list[dict[str, Any]]]:
        """A rank's records, to change in place; sealed.

        ``variant`` may also name a launch: ``buggy/resume``.
        """
        file = self.rank_file(variant, rank)
        records = read(file)
        yield records
        write(file, records)
        if (file.parent / EXIT_FILE).is_file():
            self.reseal(variant)

    @contextmanager
    def record(self, variant: str, kind: str, rank: int = 0) -> Iterator[dict[str, Any]]:
        """The first record of a kind, to change in place; sealed."""
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
    """Replace the records of a file; exit.json keeps the old digest."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def seal(folder: Path) -> None:
    """Compute all digests of a run folder again, and put each file's identity into it."""
    run = json.loads((folder / RUN_FILE).read_text())
    for variant, trial in dict(run["trials"] or {}).items():
        for launch in trial.get("launches", ()):
            if (folder / variant / launch).is_dir():
                _seal_launch(folder / variant / launch, _identity(run, variant, launch))


def _identity(run: dict[str, Any], variant: str, launch: str) -> dict[str, Any]:
    """The identity of a launch; run.json may be damaged, so this is not ``Identity.of``."""
    trial = run["trials"][variant]
    identity = Identity(
        run["run"],
        digest(run),
        run["scenario"],
        variant,
        launch,
        run["seed"],
        digest(trial.get("params")),
        trial.get("ranks"),
    )
    return asdict(identity)


def _seal_launch(folder: Path, identity: dict[str, Any]) -> None:
    for path in folder.glob("rank_*.jsonl"):
        records = read(path)
        if records and records[0]["kind"] == BEGIN:
            records[0].update(identity)
        write(path, records)
    for name, more in ((EXIT_FILE, {"records": _digests(folder)}), (MADE_FILE, {})):
        if (folder / name).is_file():
            with changing(folder / name) as content:
                content.update({"of": identity, **more})


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of the ranks' files in a folder, by rank."""
    return {
        path.stem.removeprefix("rank_"): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("rank_*.jsonl")
    }


@contextmanager
def changing(file: Path) -> Iterator[dict[str, Any]]:
    """The content of a JSON file, to change in place."""
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))
