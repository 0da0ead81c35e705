"""The run folder: run.json, the records of each rank, how each launch ended, and the verdict.

``RUN/run.json`` is written before anything is launched; ranks read nothing else.
``RUN/VARIANT/LAUNCH/rank_N.jsonl`` contains one record per line. A rank writes
``rank_N.jsonl.part`` and renames it at its end, so a file with its final name is complete.

A rank's first record names the run, the trial and the launch, and so does ``exit.json``, which
the harness writes after the processes of a launch have ended. So a file that was cut, or that is
from elsewhere, is noticed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import HarnessError, Inconclusive
from harness.facts.shapes import COUNT, TEXT
from harness.files import new_folder_beside, unwritten, write_whole
from harness.spec import Record, Records

FORMAT = 4
"""The format of run folders. It rises with every change after which old and new versions cannot
grade each other's folders."""

RUN_FILE = "run.json"
EXIT_FILE = "exit.json"
VERDICT_FILE = "verdict.json"
BEGIN, END = "begin", "end"

IDENTITY = {
    "format": COUNT,
    "run": TEXT,
    "scenario": TEXT,
    "variant": TEXT,
    "launch": TEXT,
    "world_size": COUNT,
}


class BrokenRecords(HarnessError):
    """A rank's records are missing, cut off, or not those of this launch."""


@dataclass(frozen=True)
class Identity:
    """The launch, trial and run that a file belongs to."""

    run: str
    scenario: str
    variant: str
    launch: str
    world_size: int
    format: int = FORMAT

    @staticmethod
    def of(run: Mapping[str, Any], variant: str, launch: str) -> Identity:
        """The identity of a launch of the run with this run.json."""
        ranks = run["trials"][variant]["ranks"]
        return Identity(run["run"], run["scenario"], variant, launch, ranks)

    def unlike(self, found: Mapping[str, Any]) -> str:
        """The first difference to a stored identity, in words; empty if there is none."""
        for name, mine in asdict(self).items():
            if found[name] != mine:
                return _DIFFERENCES.get(name, f"another {name}").format(found[name], mine)
        return ""


_DIFFERENCES = {
    "format": "format {}, not {}",
    "run": "another run",
    "scenario": "the scenario {}, not {}",
    "variant": "the variant {}, not {}",
    "launch": "the launch '{}', not '{}'",
    "world_size": "a trial on {} ranks, not {}",
}


def digest(data: Any) -> str:
    """A digest of JSON data that does not depend on the order of keys, nor on white space."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Exit:
    """How the processes of a launch ended."""

    code: int
    """torchrun's exit code; negative for a signal."""
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    failure: Mapping[str, Any] | None = None
    """The rank that failed first and its message, if torchrun knows them."""
    survivors: tuple[int, ...] = ()
    """Ids of processes that could not be killed: always empty on a sound machine."""
    reason: str = ""
    """Why torchrun itself failed, from its log, if it did or if it never ended."""
    preloaded: Mapping[str, float] = field(default_factory=dict)
    """What was imported before the processes were forked, ``torch`` and ``upstream``, with the wall
    seconds of the import, which all forked launches share; empty for a cold launch."""

    @staticmethod
    def read(folder: Path) -> Exit:
        """The exit of the launch in ``folder``; raises Inconclusive if it has none."""
        return _exit(_exit_json(folder))


def write_exit(folder: Path, ended: Exit, identity: Identity) -> None:
    """Write exit.json: how a launch ended."""
    write_json(folder / EXIT_FILE, {**asdict(ended), "of": asdict(identity)})


def read_exit(folder: Path, identity: Identity) -> Exit:
    """How a launch ended. Raises Inconclusive if exit.json is from another launch."""
    content = _exit_json(folder)
    difference = identity.unlike(content["of"])
    if difference:
        raise Inconclusive(f"{EXIT_FILE} is from {difference}")
    return _exit(content)


def _exit_json(folder: Path) -> dict[str, Any]:
    if not (folder / EXIT_FILE).exists():
        raise Inconclusive(f"this trial never ended: {folder} has no {EXIT_FILE}")
    content: dict[str, Any] = read_json(folder / EXIT_FILE)
    return content


def _exit(content: Mapping[str, Any]) -> Exit:
    fields = {name: value for name, value in content.items() if name != "of"}
    return Exit(**{**fields, "survivors": tuple(fields["survivors"])})


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


def parse(text: str) -> Any:
    """The data of a JSON text. Also raises ValueError for NaN and infinity."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"contains {name}, which is not a number")


def write_json(path: Path, data: Any) -> None:
    """Write a complete JSON file; raises Inconclusive with the reason if that is not possible."""
    try:
        write_whole(path, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise unwritten(path, error, "runs=") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run folder; raises Inconclusive if it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Inconclusive(f"cannot read {path}: {why}") from None


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
