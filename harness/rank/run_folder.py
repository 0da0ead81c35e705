"""The run folder: run.json, the records of each rank, how each launch ended, and the verdict.

``RUN/run.json`` is written before anything is launched; ranks read nothing else.
``RUN/VARIANT/LAUNCH/rank_N.jsonl`` contains one record per line. A rank writes
``rank_N.jsonl.part`` and renames it at its end, so a file with its final name is complete.

A rank's first record names the run, the trial and the launch, and so does ``exit.json``, which
the harness writes after the processes of a launch have ended. So a truncated file, or a file of
another launch, is noticed. Unfinished files of killed runs are removed.

The folder of a scenario contains a run, too: ``recorded.tar.xz`` has the recorded run on the CPU,
which can be graded again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Lane, Position, Record, Records
from harness.rank.exits import EXIT_FILE, trial_folder
from harness.system import archives
from harness.system.documents import json_of
from harness.system.errors import HarnessError, Inconclusive
from harness.system.files import folder_whole, locked, read_json, unwritten, write_json

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


def records_of(folder: Path, variant: str) -> Iterator[Record]:
    """The records of a trial in a run folder: launch by launch, and rank by rank. Raises
    Inconclusive as ``read_records`` does."""
    trial = read_json(folder / RUN_FILE)["trials"][variant]
    for launch in trial["launches"]:
        records = read_records(folder / variant / launch, trial["ranks"])
        for rank in records.ranks:
            yield from records.by_rank[rank]


def _refuse_others(folder: Path, ranks: int) -> None:
    """Raise BrokenRecords for a file of an unknown rank, or one both finished and unfinished."""
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
        *lines, tail = path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise BrokenRecords(f"cannot read {path}: {error.strerror}") from None
    records = [_parse(line, rank, number) for number, line in enumerate(lines, start=1)]
    if tail or not records or records[-1]["kind"] != END:
        raise BrokenRecords(f"rank {rank}: its records are cut off after {len(records)} lines")
    return records


def _parse(line: str, rank: int, number: int) -> Record:
    try:
        record = json_of(line)
    except ValueError as error:
        why = "it is not JSON" if isinstance(error, json.JSONDecodeError) else error
        raise BrokenRecords(f"rank {rank}: line {number} of its records: {why}") from None
    if not isinstance(record, dict) or record.get("rank") != rank:
        raise BrokenRecords(f"rank {rank}: line {number} of its records is not from this rank")
    return record


def create_run_folder(parent: Path, name: str, run: Mapping[str, Any]) -> Path:
    """Make ``parent/name`` with its run.json and a folder for each launch: all of it or nothing."""
    try:
        with folder_whole(parent / name) as unfinished:
            write_json(unfinished / RUN_FILE, run)
            for variant, trial in run["trials"].items():
                for launch in trial["launches"]:
                    (trial_folder(unfinished, run, variant) / launch).mkdir(parents=True)
    except OSError as error:
        raise unwritten(parent, error, "runs=") from None
    return parent / name


def check_run(run: Mapping[str, Any]) -> None:
    """Raise Inconclusive if this catalogue cannot judge a run with this run.json."""
    if run["scenario"] not in catalog.names():
        raise Inconclusive(f"this catalogue has no scenario '{run['scenario']}': {_origin(run)}")
    variants = {RELEASED, *catalog.scenario(run["scenario"]).variants}
    for variant in run["trials"]:
        if variant not in variants:
            raise Inconclusive(
                f"run.json: this catalogue has no variant '{variant}': {_origin(run)}"
            )
        try:
            params_of(run, variant)
        except (TypeError, ValueError) as error:
            why = f"this catalogue does not accept its parameters ({error})"
            raise Inconclusive(f"run.json, {variant}: {why}: {_origin(run)}") from None


def _origin(run: Mapping[str, Any]) -> str:
    """In words, the commit of the catalogue from which a run is."""
    commit = run["source"]["commit"]
    return f"it is from the catalogue of commit {commit[:12]}" if commit else "it names no commit"


def position_of(
    run: Mapping[str, Any], variant: str, launch: str, rank: int, params: Any
) -> Position:
    """The position of a rank of a launch, with the parameters of its trial."""
    trial = run["trials"][variant]
    return Position(
        params, run["seed"], rank, trial["ranks"], Lane(run["lane"]), trial["pins"], launch
    )


def params_of(run: Mapping[str, Any], variant: str) -> Any:
    """The scenario's ``Params`` for a trial."""
    return catalog.load(run["scenario"]).Params(**run["trials"][variant]["params"])


NAME = r"\d{8}-\d{6}-\w+-[0-9a-f]{6}"
"""The name of a run folder. Nothing with another name is touched."""


@contextmanager
def shared(runs: Path) -> Iterator[None]:
    """Hold a shared lock on the folder of all runs, as every living run does.

    A run that holds the lock alone first removes unfinished files of killed runs. The lock is on
    the folder itself, and the kernel frees it when the process ends.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # making the run folder fails too, or there are no locks on folders
            runs.mkdir(parents=True, exist_ok=True)
            with locked(runs, wait=False) as is_alone:
                if is_alone:
                    _remove_unfinished(runs)
        with suppress(OSError):
            stack.enter_context(locked(runs, shared=True))
        yield


def _remove_unfinished(runs: Path) -> None:
    for folder in runs.glob(".*"):
        if re.fullmatch(rf"\.{NAME}\.\w+", folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    for run in runs.glob("[0-9]*"):
        if re.fullmatch(NAME, run.name) and not (run / VERDICT_FILE).exists():
            # Also in the folder of a trial, or of one of its launches.
            for pattern in (f".{VERDICT_FILE}.*", f"*/.{EXIT_FILE}.*", f"*/*/.{EXIT_FILE}.*"):
                for file in run.glob(pattern):
                    file.unlink(missing_ok=True)


RECORDED = "recorded.tar.xz"
"""The run folder of a recorded run, without logs and checkpoints."""


@contextmanager
def recorded(scenario: str) -> Iterator[Path | None]:
    """Unpack a scenario's recorded run; gives its folder, or None without a recorded run."""
    file = catalog.folder(scenario) / RECORDED
    if not file.is_file():
        yield None
        return
    with TemporaryDirectory(prefix=f"{scenario}-") as temporary:
        folder = Path(temporary, "recorded")
        archives.unpack(file, folder)
        yield folder
