"""The run folder: run.json, what every rank wrote down, and the verdict.

``RUN/run.json`` is written before anything is launched and is the one file that crosses the
process boundary. ``RUN/VARIANT/rank_N.jsonl`` holds one record a line; a rank writes it as
``rank_N.jsonl.part`` and renames it when it is complete, so a file under its final name is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from harness.files import write_whole
from harness.spec import HarnessError, Inconclusive, Record, Records

FORMAT = 1
"""Of run.json and what lies beside it; raised when an older grading could not read it."""

RUN_FILE = "run.json"
EXIT_FILE = "exit.json"
VERDICT_FILE = "verdict.json"
END = "end"


class BrokenRecords(HarnessError):
    """A rank's records are missing, cut short or not what they claim to be."""


def merged(acts: Mapping[str, Records]) -> Records:
    """The records of a trial's acts as one, each with the name of its act."""
    ranks = {rank for records in acts.values() for rank in records.ranks}
    return Records(
        {
            rank: [
                {**record, "act": act}
                for act, records in acts.items()
                for record in records.by_rank.get(rank, ())
            ]
            for rank in sorted(ranks)
        }
    )


@dataclass(frozen=True)
class Exit:
    """How the processes of one trial ended."""

    code: int
    """torchrun's exit code; negative for a signal."""
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    failure: Mapping[str, Any] | None = None
    """The first failing rank, its exit code and its error's text, where torchrun knows."""
    survivors: tuple[int, ...] = ()
    """Process ids that would not end: always empty, or the machine is in trouble."""

    @staticmethod
    def read(folder: Path) -> Exit:
        """The exit of the trial in ``folder``; raises Inconclusive where it left none."""
        data = read_json(folder / EXIT_FILE)
        try:
            return Exit(**{**data, "survivors": tuple(data["survivors"])})
        except (KeyError, TypeError):
            raise Inconclusive(f"{folder / EXIT_FILE} is not the record of an exit") from None


class Recorder:
    """Writes the records of one rank, whole or not at all."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.final = records_file(folder, rank)
        self.part = part_file(folder, rank)
        self.count = 0
        self._file: TextIO = self.part.open("w", encoding="utf-8")

    def record(self, kind: str, step: int | None = None, **facts: Any) -> None:
        """Append one record. ``step`` counts from 1; None means outside the training steps."""
        line: Record = {"kind": kind, "rank": self.rank, "step": step, **facts}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self.count += 1

    def close(self) -> None:
        """Mark the records as complete and give the file its final name."""
        self.record(END, records=self.count)
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self.part, self.final)


def records_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.jsonl"


def part_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.jsonl.part"


def last_record(folder: Path, rank: int) -> Record | None:
    """The newest whole record of a rank that may still be writing; for progress, not for proof."""
    for path in (records_file(folder, rank), part_file(folder, rank)):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            try:
                found: Record = json.loads(line)
                return found
            except ValueError:
                continue  # the line that is being written just now
    return None


def read_records(folder: Path, ranks: int) -> Records:
    """The complete records of all ranks; raises BrokenRecords, naming the rank and the defect."""
    return Records({rank: _read_rank(folder, rank) for rank in range(ranks)})


def _read_rank(folder: Path, rank: int) -> list[Record]:
    path = records_file(folder, rank)
    if not path.is_file():
        raise BrokenRecords(f"rank {rank} left no complete records")
    records = [_parse(line, rank, n) for n, line in enumerate(_lines(path), start=1)]
    if not records or records[-1].get("kind") != END:
        raise BrokenRecords(f"rank {rank}: its records are cut off after {len(records)} lines")
    if records[-1].get("records") != len(records) - 1:
        raise BrokenRecords(
            f"rank {rank}: {len(records) - 1} records, where it says it wrote "
            f"{records[-1].get('records')}"
        )
    return records


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _parse(line: str, rank: int, number: int) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        raise BrokenRecords(f"rank {rank}: line {number} of its records is not JSON") from None
    if not isinstance(record, dict) or "kind" not in record:
        raise BrokenRecords(f"rank {rank}: line {number} of its records is no record")
    return record


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file whole; raises Inconclusive, saying why, where that cannot be done."""
    try:
        write_whole(path, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise _no_room(path, error) from None


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run folder; raises Inconclusive where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Inconclusive(f"cannot read {path}: {error}") from None


def create_run_folder(parent: Path, name: str, run: Mapping[str, Any]) -> Path:
    """Make ``parent/name`` with its run.json and a folder a trial: all of it or nothing."""
    aside: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}."))
        os.chmod(aside, 0o755)
        write_json(aside / RUN_FILE, run)
        for variant, trial in run["trials"].items():
            for act in trial["acts"]:
                (aside / variant / act).mkdir(parents=True)
        final = parent / name
        aside.rename(final)
        return final
    except OSError as error:
        raise _no_room(parent, error) from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _no_room(path: Path, error: OSError) -> Inconclusive:
    if error.errno == errno.ENOSPC:
        return Inconclusive(f"no room on the disk for {path}: free some, or name another runs=")
    return Inconclusive(f"cannot write {path}: {error.strerror or error}")
