"""The run folder: run.json, what every rank wrote down, how it ended, and the verdict.

``RUN/run.json`` is written before anything is launched and is the one file that crosses the
process boundary. ``RUN/VARIANT/ACT/rank_N.jsonl`` holds one record a line; a rank writes it as
``rank_N.jsonl.part`` and renames it when it is complete, so a file under its final name is whole.

A rank's first record says who it is and what it is going to record. Every record ends with its
``chain``: a digest of itself and of the chain of the record before it, so that a line that was
replaced, doubled or moved is seen. The first one holds the digest of run.json, and ``exit.json``
the digests of the ranks' files: they belong together, or nothing of them is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from harness import apex
from harness.errors import HarnessError, Inconclusive
from harness.facts.plan import BrokenPromise, Kind, Ledger, Plan, to_json
from harness.facts.shapes import (
    COUNT,
    FLAG,
    LINE,
    NUMBER,
    SIZE,
    TEXT,
    WHOLE,
    Shape,
    alike,
    by_name,
    held,
    many,
    matching,
    maybe,
    optional,
)
from harness.files import new_folder_beside, read_plain, sha256, unwritten, write_whole
from harness.spec import Record, Records

FORMAT = 2
"""Of run.json and what lies beside it; raised when an older grading could not read it."""

RUN_FILE = "run.json"
EXIT_FILE = "exit.json"
VERDICT_FILE = "verdict.json"
BEGIN, END = "begin", "end"
CHAIN = "chain"

LARGEST = 64 << 20
"""The most bytes that a file of a run folder may have, to be read: the largest known has 2 MB."""

IDENTITY = {
    "format": COUNT,
    "run": TEXT,
    "run_json": TEXT,
    "scenario": TEXT,
    "variant": TEXT,
    "launch": TEXT,
    "seed": WHOLE,
    "params": TEXT,
    "world_size": COUNT,
}
_VERSION = alike(matching(r"\d+(\.\d+)+\S*", "version"))
ON_GPU = {"gpu": LINE, "nccl": _VERSION, "cuda": _VERSION}
"""What ``start`` has on the lane of GPUs, and on no other."""
HOUSE: Mapping[str, Kind] = {
    BEGIN: Kind(
        {
            **IDENTITY,
            "pid": COUNT,
            "host": alike(LINE),
            "promised": held({"steps": by_name(many(maybe(WHOLE))), "ends": many(TEXT)}),
        }
    ),
    "start": Kind(
        {
            "python": _VERSION,
            "torch": _VERSION,
            "threads": alike(COUNT),
            **{name: optional(shape) for name, shape in ON_GPU.items()},
        }
    ),
    "upstream": Kind(
        {
            "modules": by_name(held({"version": TEXT, "file": TEXT})),
            "files": by_name(maybe(held({"path": TEXT, "sha256": TEXT}))),
            "loaded": TEXT,
            "apex": alike(matching(apex.STATES, "state of apex")),
        }
    ),
    "shims": Kind({"uses": by_name(COUNT)}),
    "phases": Kind({"seconds": by_name(NUMBER), "ended": NUMBER}),
    END: Kind({"records": COUNT}),
}
"""What every rank records besides what its scenario has planned."""

FIRST, LAST = (BEGIN, "start"), ("upstream", "shims", "phases", END)
"""The records of the harness that come before those of the scenario, and those that come after."""


class BrokenRecords(HarnessError):
    """A rank's records are missing, cut short or not what they claim to be."""


def whole_plan(plan: Plan) -> Plan:
    """All that a rank is going to record, by its scenario's plan."""
    odd = set(plan) & set(HOUSE)
    if odd:
        raise BrokenPromise(f"'{odd.pop()}' is a record of the harness's own: name it otherwise")
    return {**HOUSE, **plan}


@dataclass(frozen=True)
class Identity:
    """Which launch of which trial of which run something belongs to."""

    run: str
    run_json: str
    """The digest of run.json's content."""
    scenario: str
    variant: str
    launch: str
    seed: int
    params: str
    """The digest of the trial's parameters."""
    world_size: int
    format: int = FORMAT

    @staticmethod
    def of(run: Mapping[str, Any], variant: str, launch: str) -> Identity:
        """Of a launch, by run.json."""
        trial = run["trials"][variant]
        return Identity(
            run["run"],
            digest(run),
            run["scenario"],
            variant,
            launch,
            run["seed"],
            digest(trial["params"]),
            trial["ranks"],
        )

    def unlike(self, found: Mapping[str, Any]) -> str:
        """In what something that was found belongs elsewhere, in words; empty if in nothing."""
        for name, mine in asdict(self).items():
            if found[name] != mine:
                return _ELSEWHERE.get(name, f"another {name}").format(found[name], mine)
        return ""


_ELSEWHERE = {
    "format": "format {}, where this one is {}",
    "run": "another run",
    "run_json": "another run.json: one of the two was changed",
    "scenario": "the scenario {}, and not of {}",
    "variant": "the variant {}, and not of {}",
    "launch": "the launch '{}', and not of '{}'",
    "seed": "a run with the seed {}, and not {}",
    "params": "a trial with other parameters",
    "world_size": "a trial on {} ranks, and not {}",
}


def digest(data: Any) -> str:
    """A digest of JSON data, whatever the order of its names and its white space."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def link(before: str, record: Mapping[str, Any]) -> str:
    """The chain of a record, given that of the record before it."""
    text = before + json.dumps(record)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Exit:
    """How the processes of one trial, or of one launch of it, ended."""

    code: int
    """torchrun's exit code; negative for a signal."""
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    failure: Mapping[str, Any] | None = None
    """The first failing rank, its exit code and its error's text, where torchrun knows."""
    survivors: tuple[int, ...] = ()
    """Process ids that would not end: always empty, or the machine is in trouble."""
    reason: str = ""
    """Why torchrun itself failed, by its log, where it left with an exit code or never ended."""
    preloaded: Mapping[str, float] = field(default_factory=dict)
    """What its processes had imported before they were forked, ``torch`` and ``upstream``, with the
    wall seconds that took, once for all that were forked there; nothing in a cold launch."""

    @staticmethod
    def read(folder: Path) -> Exit:
        """The exit of the trial in ``folder``; raises Inconclusive where it left none."""
        return _exit(_exit_json(folder))


EXIT: Mapping[str, Shape] = {
    "code": WHOLE,
    "seconds": SIZE,
    "timed_out": FLAG,
    "interrupted": FLAG,
    "failure": maybe(held({"rank": COUNT, "message": TEXT, "at": optional(NUMBER)})),
    "survivors": many(COUNT),
    "reason": optional(TEXT),
    "preloaded": optional(by_name(SIZE)),
    "of": held(IDENTITY),
    "records": by_name(TEXT),
}


def write_exit(folder: Path, ended: Exit, of: Identity) -> None:
    """Write how a launch of a trial ended, with the digests of the files that its ranks left."""
    files = {str(n): records_file(folder, n) for n in range(of.world_size)}
    records = {rank: sha256(file) for rank, file in files.items() if file.is_file()}
    write_json(folder / EXIT_FILE, {**asdict(ended), "of": asdict(of), "records": records})


def read_exit(folder: Path, of: Identity) -> Exit:
    """How a launch of a trial ended; raises Inconclusive where exit.json is of something else, or
    where a rank's file is not the one that there was at the end."""
    told = _exit_json(folder)
    elsewhere = of.unlike(told["of"])
    if elsewhere:
        raise Inconclusive(f"{EXIT_FILE} is of {elsewhere}")
    for rank in range(of.world_size):
        file = records_file(folder, rank)
        left = hashlib.sha256(_bytes(file)).hexdigest() if file.exists() else None
        if told["records"].get(str(rank)) != left:
            raise Inconclusive(f"rank {rank}: its records are not those that it left at its end")
    return _exit(told)


def _exit_json(folder: Path) -> dict[str, Any]:
    if not os.path.lexists(folder / EXIT_FILE):
        raise Inconclusive(f"this trial never ended: {folder} has no {EXIT_FILE}")
    told = read_json(folder / EXIT_FILE)
    wrong = held(EXIT)(told)
    if wrong:
        raise Inconclusive(f"{folder / EXIT_FILE} is not the record of an exit: {wrong}")
    found: dict[str, Any] = told
    return found


def _exit(told: Mapping[str, Any]) -> Exit:
    if not told["code"] and told["failure"]:
        raise Inconclusive(f"{EXIT_FILE} tells of a failure, and of none")
    kept = {name: value for name, value in told.items() if name not in ("of", "records")}
    return Exit(**{**kept, "survivors": tuple(kept["survivors"])})


class Recorder:
    """Writes the records of one rank, as planned, whole or not at all."""

    def __init__(self, folder: Path, rank: int, of: Identity, plan: Plan) -> None:
        self.rank = rank
        self.final = records_file(folder, rank)
        self.part = part_file(folder, rank)
        self.count = 0
        self.chain = ""
        self._ledger = Ledger(whole_plan(plan))
        self._file: TextIO = self.part.open("w", encoding="utf-8")
        who = {**asdict(of), "pid": os.getpid(), "host": socket.gethostname()}
        self.record(BEGIN, None, **who, promised=to_json(plan))

    def record(self, kind: str, step: int | None = None, **facts: Any) -> None:
        """Append one record. ``step`` counts from 1; None means outside the training steps.

        Raises BrokenPromise where it is not the next one of its kind by the plan, or where a fact
        has not its shape: a loss that is NaN, unless the kind says that it may be.
        """
        told = {"kind": kind, "rank": self.rank, "step": step, **facts}
        line: Record = json.loads(json.dumps(told))  # as whoever reads it will see it
        self._ledger.take(line)
        self.chain = link(self.chain, line)
        self._file.write(json.dumps({**line, CHAIN: self.chain}, allow_nan=False) + "\n")
        self._file.flush()
        self.count += 1

    def close(self) -> None:
        """Mark the records as complete and give the file its final name."""
        self.record(END, records=self.count)
        self._ledger.close()
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
            lines = read_plain(path, LARGEST).decode("utf-8", "replace").splitlines()
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
    """The complete records of all ranks, each chained to the one before it.

    Raises BrokenRecords, naming the rank and the defect. What they say is not looked at: for that
    see ``proof``.
    """
    _refuse_others(folder, ranks)
    return Records({rank: _read_rank(folder, rank) for rank in range(ranks)})


def _refuse_others(folder: Path, ranks: int) -> None:
    """No rank but those asked for may have left anything, and none a file that it did not finish
    beside one that it did."""
    mine = {records_file(folder, rank).name for rank in range(ranks)}
    for file in sorted(folder.glob("rank_*.jsonl")):
        if file.name not in mine:
            raise BrokenRecords(f"{file.name} is of no rank of this trial, which has {ranks}")
        if file.with_name(f"{file.name}.part").exists():
            raise BrokenRecords(f"{file.name} is there twice, finished and unfinished")


def _read_rank(folder: Path, rank: int) -> list[Record]:
    path = records_file(folder, rank)
    if not path.exists() and not path.is_symlink():
        raise BrokenRecords(f"rank {rank} left no complete records")
    text = _bytes(path).decode("utf-8", "replace")
    records, before = [], ""
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        record = _parse(line, rank, number)
        chained, before = record.pop(CHAIN, None), link(before, record)
        if chained != before:
            raise BrokenRecords(f"rank {rank}: line {number} of its records was not written there")
        records.append(record)
    if not records or records[-1]["kind"] != END or not text.endswith("\n"):
        raise BrokenRecords(f"rank {rank}: its records are cut off after {len(records)} lines")
    if records[-1].get("records") != len(records) - 1:
        raise BrokenRecords(
            f"rank {rank}: {len(records) - 1} records, where it says it wrote "
            f"{records[-1].get('records')}"
        )
    return records


def _bytes(path: Path) -> bytes:
    try:
        return read_plain(path, LARGEST)
    except OSError as error:
        raise BrokenRecords(f"cannot read {path}: {error.strerror}") from None


def _parse(line: str, rank: int, number: int) -> Record:
    try:
        record = parse(line)
    except ValueError as error:
        what = "is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise BrokenRecords(f"rank {rank}: line {number} of its records {what}") from None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise BrokenRecords(f"rank {rank}: line {number} of its records is no record")
    if record.get("rank") != rank or isinstance(record["rank"], bool) or "step" not in record:
        raise BrokenRecords(f"rank {rank}: line {number} of its records is not of this rank")
    return record


def parse(text: str) -> Any:
    """The data of a JSON text; raises ValueError also where it names NaN, where one object has a
    key twice, or where it is nested too deep."""
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("is nested too deep") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which is no number")


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object; json itself keeps the last value of a key that occurs twice, and says nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"has the key {twice!r} twice in one object")
    return found


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file whole; raises Inconclusive, saying why, where that cannot be done."""
    try:
        write_whole(path, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise unwritten(path, error, "runs=") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run folder; raises Inconclusive where there is none."""
    try:
        return parse(read_plain(path, LARGEST).decode("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Inconclusive(f"cannot read {path}: {why}") from None


def create_run_folder(parent: Path, name: str, run: Mapping[str, Any]) -> Path:
    """Make ``parent/name`` with its run.json and a folder a trial: all of it or nothing."""
    aside: Path | None = None
    try:
        aside = new_folder_beside(parent / name)
        write_json(aside / RUN_FILE, run)
        for variant, trial in run["trials"].items():
            for launch in trial["launches"]:
                (aside / variant / launch).mkdir(parents=True)
        final = parent / name
        aside.rename(final)
        return final
    except OSError as error:
        raise unwritten(parent, error, "runs=") from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
