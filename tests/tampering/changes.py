"""How the tables change recorded evidence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.bugs.api.spec import Outcome, Records
from harness.rank import run_folder
from harness.rank.run_folder import RUN_FILE, read_records
from harness.run.grade import run_of
from harness.run.validation import merged
from harness.system.errors import Inconclusive
from tests.recording import Recording, changing, recorded

Change = Callable[[Any], Any]
"""Changes something in place: a record, all records or lines of a rank, the content of a JSON file,
or the files in a folder."""


class Case(NamedTuple):
    """One change of the evidence of one trial."""

    scenario: str
    place: str
    """The trial, or the trial and its launch: ``buggy/resume``."""
    rank: int | None
    """The rank whose records are changed; None for all of them."""
    what: str
    """What is changed: each record of this kind; ``records``, all records of a rank; ``lines``, the
    lines of a rank's file; the content of ``run.json`` or ``exit.json``; or ``folder``, the
    launch's folder."""
    change: Change
    says: str
    """What the reason contains."""

    def __str__(self) -> str:
        return "-".join(str(part) for part in (*self[:4], self.says))


Table = dict[str, list[tuple[Change, str]]]
"""By scenario, trial, rank (``*``: all of them) and what is changed: each change, and what the
reason contains."""


def cases(table: Table) -> list[Case]:
    return [
        Case(scenario, trial, None if rank == "*" else int(rank), what, change, says)
        for key, rows in table.items()
        for scenario, trial, rank, what in [key.split()]
        for change, says in rows
    ]


def to(**facts: Any) -> Change:
    """Set facts to these values."""
    return lambda record: record.update(facts)


def gone(name: str) -> Change:
    """Remove a fact."""
    return lambda record: record.pop(name)


def times(name: str, by: float) -> Change:
    return lambda record: record.update({name: record[name] * by})


def within(name: str, change: Change) -> Change:
    """Make the change inside a fact that is an object, or in the first object of a list."""
    return lambda r: change(r[name][0] if isinstance(r[name], list) else r[name])


def during(change: Change, steps: range) -> Change:
    """Make the change in these steps only."""
    return lambda record: change(record) if record["step"] in steps else None


def later(change: Change, than: int = 3) -> Change:
    """Make the change only in the steps after step ``than``."""
    return during(change, range(than + 1, 10**6))


def drop(kind: str, number: int | None = None) -> Change:
    """Remove the records of a kind, or one of them."""

    def change(records: list[dict[str, Any]]) -> None:
        for record in of(records, kind) if number is None else [of(records, kind)[number]]:
            records.remove(record)

    return change


def of(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def copy(case: Case, folder: Path) -> Recording:
    """A copy of a recorded run with only the trial of a case."""
    run, trial = recorded()[case.scenario], case.place.partition("/")[0]
    shutil.copytree(run / trial, folder / "run" / trial)
    shutil.copy(run / RUN_FILE, folder / "run")
    return Recording(folder / "run")


def tamper(run: Recording, case: Case) -> None:
    """Change the evidence in a run's folder as a case says."""
    folder = run.folder / case.place
    if case.what == RUN_FILE:
        with run.run() as content:
            case.change(content)
    elif case.what.endswith(".json"):
        with changing(folder / case.what) as content:
            case.change(content)
    elif case.what == "folder":
        case.change(folder)
    else:
        for rank in range(len(list(folder.glob("rank_*.jsonl")))):
            if case.rank in (None, rank):
                change_rank(run, case, rank)


def change_rank(run: Recording, case: Case, rank: int) -> None:
    if case.what == "lines":
        with run.lines(case.place, rank) as lines:
            case.change(lines)
    else:
        with run.records(case.place, rank) as records:
            change_records(records, case)


def change_records(records: list[dict[str, Any]], case: Case) -> None:
    for target in [records] if case.what == "records" else of(records, case.what):
        case.change(target)


def graded(case: Case, folder: Path) -> tuple[Outcome, str]:
    """The outcome and reason of a case's trial, graded after the change."""
    run = copy(case, folder)
    tamper(run, case)
    try:
        trial = run.trial(case.place.partition("/")[0])
    except Inconclusive as error:  # run.json is refused, and no trial of it is graded
        return Outcome.INCONCLUSIVE, str(error)
    return trial.outcome, trial.reason


@cache
def recorded_trial(scenario: str, trial: str) -> Records:
    """The records of a trial of a recorded run; do not change them."""
    folder = recorded()[scenario]
    run = run_of(folder)
    planned = run["trials"][trial]
    launches = {
        launch: read_records(folder / trial / launch, planned["ranks"])
        for launch in planned["launches"]
    }
    return merged(launches, run_folder.params_of(run, trial))


def changed(case: Case) -> Records:
    """The changed records of a case's trial, not checked against their plan.

    The place ``fp16_overflow:buggy`` is a trial of another scenario's run.
    """
    scenario, _, trial = case.place.rpartition(":")
    whole = recorded_trial(scenario or case.scenario, trial)
    records = {rank: deepcopy(list(theirs)) for rank, theirs in whole.by_rank.items()}
    for rank in records if case.rank is None else [case.rank]:
        change_records(records[rank], case)
    return Records(records, whole.params)
