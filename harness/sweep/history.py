"""The history: every night that was watched, in one SQLite file, which the site is made from.

A night's rows are written as they come, each in a transaction of its own: a night that was killed
has lost nothing that it had been told, and the next one goes on with it.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.errors import Inconclusive, UserError
from harness.facts.shapes import (
    ANYTHING,
    LINE,
    SIZE,
    TEXT,
    WHOLE,
    Shape,
    by_name,
    many,
    maybe,
    one_of,
)
from harness.files import locked, unwritten
from harness.results import RunResult
from harness.spec import Verdict
from harness.sweep.cells import Cell
from harness.text import LONGEST
from harness.upstream.index import Release as Release

VERSION = 1
"""Of the schema, kept in the file as SQLite's user_version."""

APPLICATION = 0x4E696768
"""SQLite's application_id of a history: another program's database is told from one."""

SCHEMA = """
create table night (
    id integer primary key,
    kind text not null check (kind in ('recorded', 'night', 'replay')),
    day text not null,
    started text not null,
    ended text,
    facts text not null
);
create table release (
    package text not null,
    version text not null,
    day text not null,
    yanked integer not null,
    primary key (package, version)
);
create table answer (
    night integer not null references night,
    scenario text not null,
    package text not null,
    version text not null,
    cell text not null,
    primary key (night, scenario, package, version)
);
create table verdict (
    night integer not null references night,
    scenario text not null,
    verdict text not null,
    seconds real not null,
    result text not null,
    run text,
    primary key (night, scenario)
);
create table change (
    night integer not null references night,
    kind text not null,
    scenario text not null,
    package text,
    version text,
    before text,
    after text not null,
    told text not null
);
"""


class Kind(str, Enum):
    """What a night was."""

    RECORDED = "recorded"
    """No night: the answers that came with the harness, ``affected.json``."""
    NIGHT = "night"
    REPLAY = "replay"
    """A day of the past, the index seen as it was then."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Night:
    """A night, and where it ran."""

    id: int
    kind: Kind
    day: str
    """The day (ISO) as of which the index was seen."""
    started: str
    """When it was begun, ISO, in UTC."""
    ended: str | None
    """None while it runs, or where it was killed."""
    facts: Mapping[str, Any]
    """Of the machine, the harness's commit, and whether there was a network."""


@dataclass(frozen=True)
class ReleaseResult:
    """What a scenario said of a release on a night: ``cell``, of all pins that it ran on."""

    night: int
    package: str
    version: str
    cell: Cell

    @property
    def key(self) -> tuple[str, str, str]:
        """What was asked: the scenario, the package, the version."""
        return self.cell.scenario, self.package, self.version


@dataclass(frozen=True)
class Own:
    """How buggy and fixed of a scenario came out on a night: the record of the harness itself."""

    night: int
    scenario: str
    verdict: str
    seconds: float
    result: Mapping[str, Any]
    """``RunResult.to_json()``."""
    run: str | None
    """The run folder, where there is one."""


@dataclass(frozen=True)
class Change:
    """What is not as it was before, in one sentence: ``told``."""

    kind: str
    scenario: str
    package: str | None
    """None where it is our own scenario that changed."""
    version: str | None
    before: str | None
    after: str
    told: str


class History:
    """One history file, open. Of all that it gives out the oldest comes first."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self._db, self.file = connection, file

    def begin(self, kind: Kind, day: str, started: str, facts: Mapping[str, Any]) -> Night:
        """A night to write to: the one of this kind that was never ended, or a new one.

        Raises UserError, or Inconclusive for tonight's own day, where ``day`` lies before a night
        that there has been: the history goes forward.
        """
        of_kind = [night for night in self.nights() if night.kind is kind]
        last = of_kind[-1] if of_kind else None
        if last and day < last.day:
            raise self._backwards(kind, day, last)
        told = (str(kind), day, started, json.dumps(facts))
        if last and last.ended is None:
            self._write(
                "update night set kind=?, day=?, started=?, facts=? where id=?", (*told, last.id)
            )
        else:
            self._write("insert into night (kind, day, started, facts) values (?, ?, ?, ?)", told)
        return [night for night in self.nights() if night.kind is kind][-1]

    def _backwards(self, kind: Kind, day: str, last: Night) -> Exception:
        told = f"{self.file.name} has a {kind} of {last.day}, and this one is of {day}"
        if kind is Kind.REPLAY:
            return UserError(f"{told}: go forward, or name another file with --history")
        return Inconclusive(f"{told}: is this machine's clock right?")

    def end(self, night: Night, ended: str) -> None:
        """Say that a night has come to its end."""
        self._write("update night set ended=? where id=?", (ended, night.id))

    def keep_releases(self, found: Iterable[Release]) -> None:
        """Keep what the index says today; what it no longer names stays as it was."""
        rows = [(r.package, r.version, r.day, int(r.yanked)) for r in found]
        with self._transaction():
            self._db.executemany("insert or replace into release values (?, ?, ?, ?)", rows)

    def keep_answer(self, night: Night, package: str, version: str, cell: Cell) -> None:
        """Keep what a scenario said of a release on a night."""
        self.keep_answers([ReleaseResult(night.id, package, version, cell)])

    def keep_answers(self, told: Iterable[ReleaseResult]) -> None:
        """Keep many answers at once: all of them, or none."""
        rows = [
            (a.night, a.cell.scenario, a.package, a.version, json.dumps(a.cell.to_json()))
            for a in told
        ]
        with self._transaction():
            self._db.executemany("insert or replace into answer values (?, ?, ?, ?, ?)", rows)

    def keep_verdict(
        self, night: Night, result: RunResult, seconds: float, run: Path | None
    ) -> None:
        """Keep how our own buggy and fixed came out."""
        row = (
            night.id,
            result.scenario,
            str(result.verdict),
            seconds,
            json.dumps(result.to_json()),
            str(run) if run else None,
        )
        self._write("insert or replace into verdict values (?, ?, ?, ?, ?, ?)", row)

    def keep_changes(self, night: Night, changes: Iterable[Change]) -> None:
        """Keep what changed on a night, in the place of what was kept of it before."""
        rows = [
            (night.id, c.kind, c.scenario, c.package, c.version, c.before, c.after, c.told)
            for c in changes
        ]
        with self._transaction():
            self._db.execute("delete from change where night=?", (night.id,))
            self._db.executemany("insert into change values (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def nights(self) -> list[Night]:
        """All nights, and what stands for one: the recorded answers."""
        rows = self._db.execute(
            "select id, kind, day, started, ended, facts from night order by id"
        )
        return [
            Night(n, Kind(kind), day, started, ended, json.loads(facts))
            for n, kind, day, started, ended, facts in rows
        ]

    def releases(self, package: str | None = None) -> list[Release]:
        """The releases of a package, or of all, by the day they appeared."""
        rows = self._db.execute(
            "select * from release where ?1 is null or package=?1 order by day, package, rowid",
            (package,),
        )
        return [Release(name, version, day, bool(yanked)) for name, version, day, yanked in rows]

    def answers(self, night: int | None = None, scenario: str | None = None) -> list[ReleaseResult]:
        """All that was said of releases, or that of a night, of a scenario."""
        rows = self._db.execute(
            "select night, package, version, cell from answer where (?1 is null or night=?1) "
            "and (?2 is null or scenario=?2) order by night, scenario, package, rowid",
            (night, scenario),
        )
        return [
            ReleaseResult(n, package, version, Cell.from_json(json.loads(cell)))
            for n, package, version, cell in rows
        ]

    def known(self, scenario: str) -> dict[tuple[str, str], ReleaseResult]:
        """What is known of each release, by package and version: the newest certain answer, else
        the newest."""
        return {key[1:]: asked for key, asked in newest(self.answers(scenario=scenario)).items()}

    def verdicts(self, night: int | None = None, scenario: str | None = None) -> list[Own]:
        """How our own scenarios came out."""
        rows = self._db.execute(
            "select * from verdict where (?1 is null or night=?1) "
            "and (?2 is null or scenario=?2) order by night, scenario",
            (night, scenario),
        )
        return [
            Own(n, name, verdict, seconds, json.loads(result), run)
            for n, name, verdict, seconds, result, run in rows
        ]

    def changes(self, night: int | None = None) -> list[tuple[int, Change]]:
        """What changed, with the number of the night."""
        rows = self._db.execute(
            "select * from change where ?1 is null or night=?1 order by night, rowid", (night,)
        )
        return [(number, Change(*told)) for number, *told in rows]

    def _write(self, statement: str, row: tuple[Any, ...]) -> None:
        with self._transaction():
            self._db.execute(statement, row)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise


def newest(told: Iterable[ReleaseResult]) -> dict[tuple[str, str, str], ReleaseResult]:
    """What is known by scenario, package and version: the newest certain answer, else the newest.

    ``told`` has the oldest first.
    """
    found: dict[tuple[str, str, str], ReleaseResult] = {}
    for asked in told:
        before = found.get(asked.key)
        if not before or asked.cell.status.certain or not before.cell.status.certain:
            found[asked.key] = asked
    return found


@contextmanager
def writing(file: Path) -> Iterator[History]:
    """Open a history to write to, made if need be, for one command at a time.

    Raises Inconclusive where another command writes, and as ``reading`` does.
    """
    if not file.parent.is_dir():
        raise UserError(f"no folder {file.parent} for {file.name}: name one that is there")
    with ExitStack() as held, _told(file):
        try:
            mine = held.enter_context(locked(file.with_name(f".{file.name}.lock"), wait=False))
        except OSError as error:
            raise unwritten(file, error, "--history") from None
        if not mine:
            raise Inconclusive(f"another night is being written to {file}: wait for its end")
        db = held.enter_context(closing(sqlite3.connect(file, isolation_level=None, timeout=60)))
        if not (_pragma(db, "page_count") or file.stat().st_size):
            _make(db)
        _check(db, file)
        yield History(db, file)


@contextmanager
def reading(file: Path) -> Iterator[History]:
    """Open a history to read from, which may be written to meanwhile.

    Raises UserError for no file, another program's database, or a newer schema; Inconclusive for a
    history that is damaged, and for what is no database.
    """
    if not file.is_file():
        raise UserError(f"no history {file}: python -m harness watch makes one")
    # Only who may write can undo what a killed writer left half done, and that is done on opening.
    ours = os.access(file, os.W_OK) and os.access(file.resolve().parent, os.W_OK)
    address = f"{file.resolve().as_uri()}?mode={'rw' if ours else 'ro'}"
    with (
        _told(file),
        closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=60)) as db,
    ):
        db.execute("pragma query_only = on")
        _check(db, file)
        yield History(db, file)


def _is_day(value: Any) -> str:
    """A day (ISO)."""
    with suppress(TypeError, ValueError):
        if date.fromisoformat(value).isoformat() == value:
            return ""
    return f"is {value!r}, and no day"


def _is_version(value: Any) -> str:
    """A version of a release."""
    try:
        return TEXT(value) or str(Version(value) and "")
    except InvalidVersion:
        return f"is {value!r}, and no version"


def _as_json(shape: Shape) -> Shape:
    """JSON, as text, of what has this shape."""

    def check(value: Any) -> str:
        try:
            return TEXT(value) or shape(json.loads(value))
        except (ValueError, RecursionError):
            return "is no JSON"

    return check


def _is_cell(value: Any) -> str:
    """A cell, as it is stored."""
    try:
        return str(Cell.from_json(value) and "")
    except ValueError as error:
        return f"holds {error}"


def _is_result(value: Any) -> str:
    """A RunResult, as far as nights and the site look at it."""
    if not isinstance(value, dict):
        return "is no result of a run"
    return WHOLE(value.get("exit_code")) or many(TEXT)(value.get("reasons"))


COLUMNS: Mapping[str, Mapping[str, Shape]] = {
    "night": {
        "id": WHOLE,
        "kind": one_of(*map(str, Kind)),
        "day": _is_day,
        "started": LINE,
        "ended": maybe(LINE),
        "facts": _as_json(by_name(ANYTHING)),
    },
    "release": {"package": LINE, "version": _is_version, "day": _is_day, "yanked": WHOLE},
    "answer": {
        "night": WHOLE,
        "scenario": LINE,
        "package": LINE,
        "version": _is_version,
        "cell": _as_json(_is_cell),
    },
    "verdict": {
        "night": WHOLE,
        "scenario": LINE,
        "verdict": one_of(*map(str, Verdict)),
        "seconds": SIZE,
        "result": _as_json(_is_result),
        "run": maybe(TEXT),
    },
    "change": {
        "night": WHOLE,
        "kind": LINE,
        "scenario": LINE,
        "package": maybe(LINE),
        "version": maybe(LINE),
        "before": maybe(TEXT),
        "after": TEXT,
        "told": TEXT,
    },
}
"""What the tables hold: SQLite lets anything be in any column, and a disk anything in a file."""


def _make(db: sqlite3.Connection) -> None:
    db.executescript(
        f"begin; {SCHEMA} pragma application_id = {APPLICATION}; "
        f"pragma user_version = {VERSION}; commit;"
    )


def _check(db: sqlite3.Connection, file: Path) -> None:
    """Refuse what is no history, or not what nights have written, before anything is made of it."""
    if not _pragma(db, "page_count"):
        raise _no_history(file, "it is empty")
    tables = {name for (name,) in db.execute("select name from sqlite_master")}
    ours = _pragma(db, "application_id") == APPLICATION
    if not ours and not tables.issuperset(COLUMNS):
        raise UserError(f"{file} is no history of ours: name another with --history")
    version = _pragma(db, "user_version")
    if version > VERSION:
        raise UserError(
            f"{file} has schema {version}, and this harness knows up to {VERSION}: use a newer one"
        )
    (whole,) = db.execute("pragma integrity_check(1)").fetchone()
    if whole != "ok":
        raise _damaged(file, whole)
    if lost := db.execute("pragma foreign_key_check").fetchone():
        raise _damaged(file, f"{lost[0]} {lost[1]} is of a night that is not there")
    if not ours:
        raise _damaged(file, "its application_id")
    for wrong in _odd(db):
        raise _damaged(file, wrong)


def _odd(db: sqlite3.Connection) -> Iterator[str]:
    """What is wrong with rows that no night wrote."""
    for table, columns in COLUMNS.items():
        for number, *row in db.execute(f"select rowid, {', '.join(columns)} from {table}"):
            for (name, shape), value in zip(columns.items(), row, strict=True):
                if wrong := shape(value):
                    yield f"{table} {number}: {name} {wrong}"


def _damaged(file: Path, why: object) -> Inconclusive:
    told = " ".join(str(why).split())
    told = told if len(told) <= LONGEST else f"{told[:LONGEST]} ..."
    return Inconclusive(f"{file} is damaged ({told}): bring back a copy of it")


def _no_history(file: Path, why: object) -> Inconclusive:
    return Inconclusive(
        f"{file} is damaged ({why}), or no history: bring back a copy of it, or name another with "
        "--history"
    )


def _pragma(db: sqlite3.Connection, name: str) -> int:
    try:
        (value,) = db.execute(f"pragma {name}").fetchone()
    except UnicodeDecodeError:  # of SQLite's own complaint, which cites the schema
        raise sqlite3.DatabaseError("malformed database schema") from None
    return int(value)


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Tell what SQLite complains of in one line."""
    try:
        yield
    except sqlite3.Error as error:
        if "not a database" in str(error):
            raise _no_history(file, error) from None
        if re.search(r"malformed|no such|decode|unsupported|unknown", str(error)):
            raise _damaged(file, error) from None
        raise Inconclusive(f"{file}: {error}; what was kept before is as it was") from None
