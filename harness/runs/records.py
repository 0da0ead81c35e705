"""The run folder: run.json, the records of each rank, how each launch ended, and the verdict.

``RUN/run.json`` is written before anything is launched; ranks read nothing else.
``RUN/VARIANT/LAUNCH/rank_N.jsonl`` contains one record per line. A rank writes
``rank_N.jsonl.part`` and renames it at its end, so a file with its final name is complete.

A rank's first record names the run, the trial and the launch, and so does ``exit.json``, which
the harness writes after the processes of a launch have ended. So a file that was cut, or that is
from elsewhere, is noticed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.api.spec import Record, Records
from harness.launch.exits import parse, write_json
from harness.system.errors import HarnessError
from harness.system.files import new_folder_beside, unwritten

RUN_FILE = "run.json"
VERDICT_FILE = "verdict.json"
BEGIN, END = "begin", "end"


class BrokenRecords(HarnessError):
    """A rank's records are missing, cut off, or not those of this launch."""


def records_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.jsonl"


def part_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.jsonl.part"


def last_record(folder: Path, rank: int) -> Record | None:
    """The newest complete record of a rank that may still be writing: for progress only."""
    for path in (records_file(folder, rank), part_file(folder, rank)):
        try:
            lines = path.read_bytes().decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in reversed(lines):
            try:
                record: Record = json.loads(line)
                return record
            except ValueError:
                continue  # the rank is writing this line now
    return None


def read_records(folder: Path, ranks: int) -> Records:
    """The complete records of all ranks of a launch.

    Raises BrokenRecords, naming the rank and the defect. ``validation`` checks the content.
    """
    _refuse_others(folder, ranks)
    return Records({rank: _read_rank(folder, rank) for rank in range(ranks)})


def _refuse_others(folder: Path, ranks: int) -> None:
    """Raise BrokenRecords for a file of another rank, or one that is finished and unfinished."""
    expected = {records_file(folder, rank).name for rank in range(ranks)}
    for file in sorted(folder.glob("rank_*.jsonl")):
        if file.name not in expected:
            raise BrokenRecords(f"{file.name} belongs to no rank of this trial, which has {ranks}")
        if file.with_name(f"{file.name}.part").exists():
            raise BrokenRecords(f"{file.name} is there twice, finished and unfinished")


def _read_rank(folder: Path, rank: int) -> list[Record]:
    path = records_file(folder, rank)
    if not path.exists():
        raise BrokenRecords(f"rank {rank} left no complete records")
    try:
        *lines, rest = path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise BrokenRecords(f"cannot read {path}: {error.strerror}") from None
    records = [_parse(line, rank, number) for number, line in enumerate(lines, start=1)]
    if rest or not records or records[-1]["kind"] != END:
        raise BrokenRecords(f"rank {rank}: its records are cut off after {len(records)} lines")
    return records


def _parse(line: str, rank: int, number: int) -> Record:
    try:
        record = parse(line)
    except ValueError as error:
        what = "is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise BrokenRecords(f"rank {rank}: line {number} of its records {what}") from None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise BrokenRecords(f"rank {rank}: line {number} of its records is not a record")
    if record.get("rank") != rank or isinstance(record["rank"], bool) or "step" not in record:
        raise BrokenRecords(f"rank {rank}: line {number} of its records is not from this rank")
    return record


def create_run_folder(parent: Path, name: str, run: Mapping[str, Any]) -> Path:
    """Make ``parent/name`` with its run.json and a folder for each launch: all of it or nothing."""
    unfinished: Path | None = None
    try:
        unfinished = new_folder_beside(parent / name)
        write_json(unfinished / RUN_FILE, run)
        for variant, trial in run["trials"].items():
            for launch in trial["launches"]:
                (unfinished / variant / launch).mkdir(parents=True)
        return unfinished.rename(parent / name)
    except OSError as error:
        raise unwritten(parent, error, "runs=") from None
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
