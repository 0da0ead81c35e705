"""A recorded run to tamper with: what a real run on the CPU left, less its logs and checkpoints.

Made with ``run scenario=bf16_clip variant=all``; only paths and the environment were made neutral,
and the diff of upstream's source left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.spec import RunResult, TrialResult
from harness.trial.grade import grade
from harness.trial.records import END, EXIT_FILE, RUN_FILE

RECORDED = Path(__file__).parent / "recorded" / "bf16_clip_cpu"


class Recording:
    """A copy of the recorded run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def grade(self) -> RunResult:
        return grade(self.folder)

    def trial(self, variant: str) -> TrialResult:
        return next(trial for trial in self.grade().trials if trial.variant == variant)

    def rank_file(self, variant: str, rank: int = 1) -> Path:
        return self.folder / variant / f"rank_{rank}.jsonl"

    @contextmanager
    def run(self) -> Iterator[dict[str, Any]]:
        """The content of run.json, to be changed in place."""
        with _changing(self.folder / RUN_FILE) as run:
            yield run

    @contextmanager
    def exit(self, variant: str) -> Iterator[dict[str, Any]]:
        """The content of a trial's exit.json, to be changed in place."""
        with _changing(self.folder / variant / EXIT_FILE) as exit_:
            yield exit_

    @contextmanager
    def records(self, variant: str, rank: int = 0) -> Iterator[list[dict[str, Any]]]:
        """A rank's records, to be changed in place; the count at their end stays right."""
        file = self.rank_file(variant, rank)
        records = [json.loads(line) for line in file.read_text().splitlines()]
        yield records
        assert records[-1]["kind"] == END
        records[-1]["records"] = len(records) - 1
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

    @contextmanager
    def record(self, variant: str, kind: str, rank: int = 0) -> Iterator[dict[str, Any]]:
        """The first record of a kind, to be changed in place."""
        with self.records(variant, rank) as records:
            yield next(record for record in records if record["kind"] == kind)


@contextmanager
def _changing(file: Path) -> Iterator[dict[str, Any]]:
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))
