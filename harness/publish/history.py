"""The history: all nightlies in one SQLite file. The site is made from it.

Before its first nightly it gets the results that come with the harness. Each row is written as soon
as it is known, in a transaction of its own: a nightly that was killed loses no finished result, and
the next one continues it.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from harness.bugs import catalog, pins, result_file
from harness.bugs.api.spec import Scenario
from harness.bugs.results import Result, RunResult
from harness.publish.history_rows import (
    Change,
    Nightly,
    NightlyKind,
    ReleaseResult,
    ScenarioResult,
    newest,
)
from harness.releases.index import Release
from harness.system.errors import Inconclusive, UserError
from harness.system.files import locked, refuse_without_folder, unwritten
from harness.system.text import one_line

VERSION = 2
"""The version of the schema, kept in the file as SQLite's user_version; 2 adds confirmations."""

APPLICATION = 0x4E696768
"""SQLite's application_id of a history; another program's database has another one."""

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

CONFIRMATION = "confirmation"
CONFIRMATIONS = f"""
create table {CONFIRMATION} (
    night integer not null references night,
    scenario text not null,
    pins text not null,
    primary key (night, scenario, pins)
);
"""


TABLES = {"night", "release", "answer", "verdict", "change"}


def _create(db: sqlite3.Connection) -> None:
    db.executescript(
        f"begin; {SCHEMA} {CONFIRMATIONS} pragma application_id = {APPLICATION}; "
        f"pragma user_version = {VERSION}; commit;"
    )


def _upgrade(db: sqlite3.Connection) -> None:
    """Bring a checked file of an older version to this one."""
    if pragma(db, "user_version") < VERSION:
        db.executescript(f"begin; {CONFIRMATIONS} pragma user_version = {VERSION}; commit;")


def _check(db: sqlite3.Connection, file: Path) -> None:
    """Raise an error for a file that is not a history, or is damaged."""
    if not pragma(db, "page_count"):
        raise not_a_history(file, "it is empty")
    tables = {name for (name,) in db.execute("select name from sqlite_master")}
    ours = pragma(db, "application_id") == APPLICATION
    if not ours and not tables >= TABLES:
        raise UserError(f"{file} is not a history: name another file with --history")
    version = pragma(db, "user_version")
    if version > VERSION:
        raise UserError(
            f"{file} has schema {version}; this harness reads up to {VERSION}: use a newer one"
        )
    (integrity,) = db.execute("pragma integrity_check(1)").fetchone()
    if integrity != "ok":
        raise damaged(file, integrity)
    if lost := db.execute("pragma foreign_key_check").fetchone():
        raise damaged(file, f"{lost[0]} {lost[1]} belongs to a nightly that does not exist")
    if not ours:
        raise damaged(file, "wrong application_id")


def damaged(file: Path, why: object) -> Inconclusive:
    return Inconclusive(f"{file} is damaged ({one_line(str(why))}): restore a copy of it")


def not_a_history(file: Path, why: object) -> Inconclusive:
    return Inconclusive(
        f"{file} is damaged ({why}) or not a history: restore a copy of it, or name another file "
        "with --history"
    )


def pragma(db: sqlite3.Connection, name: str) -> int:
    try:
        (value,) = db.execute(f"pragma {name}").fetchone()
    except UnicodeDecodeError:  # SQLite's own message quotes the schema
        raise sqlite3.DatabaseError("malformed database schema") from None
    return int(value)


class History:
    """An open history file. All lists have the oldest first."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self._db, self.file = connection, file

    def start(self, kind: NightlyKind, day: str, started: str, facts: Mapping[str, Any]) -> Nightly:
        """A nightly to write to: the unfinished one of this kind, or a new one.

        The days of a history only increase. Raises UserError for a replay of an earlier day, and
        Inconclusive for a nightly of an earlier day.
        """
        of_kind = [nightly for nightly in self.nightlies() if nightly.kind is kind]
        previous = of_kind[-1] if of_kind else None
        if previous and day < previous.day:
            raise self._out_of_order(kind, day, previous)
        row = (str(kind), day, started, json.dumps(facts))
        if previous and previous.ended is None:
            self._write(
                "update night set kind=?, day=?, started=?, facts=? where id=?", (*row, previous.id)
            )
        else:
            self._write("insert into night (kind, day, started, facts) values (?, ?, ?, ?)", row)
        return [nightly for nightly in self.nightlies() if nightly.kind is kind][-1]

    def _out_of_order(self, kind: NightlyKind, day: str, previous: Nightly) -> Exception:
        days = f"{self.file.name} has a {kind.word} of {previous.day}, which is later than {day}"
        if kind is NightlyKind.REPLAY:
            return UserError(f"{days}: replay a later day, or name another file with --history")
        return Inconclusive(f"{days}: is this machine's clock right?")

    def finish(self, nightly: Nightly, ended: str) -> None:
        """Note that a nightly has finished."""
        self._write("update night set ended=? where id=?", (ended, nightly.id))

    def add_releases(self, releases: Iterable[Release]) -> None:
        """Add or replace releases; those that the index no longer names stay as they are."""
        rows = [(r.package, r.version, r.day, int(r.yanked)) for r in releases]
        with self._transaction():
            self._db.executemany("insert or replace into release values (?, ?, ?, ?)", rows)

    def add_results(self, results: Iterable[ReleaseResult]) -> None:
        """Add results of releases: all of them, or none."""
        rows = [
            (r.nightly, r.cell.scenario, r.package, r.version, json.dumps(r.cell.to_json()))
            for r in results
        ]
        with self._transaction():
            self._db.executemany("insert or replace into answer values (?, ?, ?, ?, ?)", rows)

    def add_verdict(
        self, nightly: Nightly, result: RunResult, seconds: float, run: Path | None
    ) -> None:
        """Add the verdict of one of our own scenarios."""
        row = (
            nightly.id,
            result.scenario,
            str(result.verdict),
            seconds,
            json.dumps(result.to_json()),
            str(run) if run else None,
        )
        self._write("insert or replace into verdict values (?, ?, ?, ?, ?, ?)", row)

    def add_confirmation(self, nightly: Nightly, scenario: str, pins: str) -> None:
        """Note that a recorded result was run again, with its releases as JSON."""
        self._write(
            "insert or replace into confirmation values (?, ?, ?)", (nightly.id, scenario, pins)
        )

    def confirmations(self) -> list[tuple[int, str, str]]:
        """The nightly, the scenario and the releases of each result that was run again."""
        if pragma(self._db, "user_version") < VERSION:
            return []  # version 1 has none
        return list(self._db.execute("select * from confirmation order by night, rowid"))

    def set_changes(self, nightly: Nightly, changes: Iterable[Change]) -> None:
        """Replace the changes of a nightly."""
        rows = [
            (nightly.id, c.kind, c.scenario, c.package, c.version, c.before, c.after, c.message)
            for c in changes
        ]
        with self._transaction():
            self._db.execute("delete from change where night=?", (nightly.id,))
            self._db.executemany("insert into change values (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def nightlies(self) -> list[Nightly]:
        """All nightlies, with the recorded results as one of them."""
        rows = self._db.execute(
            "select id, kind, day, started, ended, facts from night order by id"
        )
        return [
            Nightly(n, NightlyKind(kind), day, started, ended, json.loads(facts))
            for n, kind, day, started, ended, facts in rows
        ]

    def releases(self, package: str | None = None) -> list[Release]:
        """The releases of a package, or of all, by their day."""
        rows = self._db.execute(
            "select * from release where ?1 is null or package=?1 order by day, package, rowid",
            (package,),
        )
        return [Release(name, version, day, bool(yanked)) for name, version, day, yanked in rows]

    def results(
        self, nightly: int | None = None, scenario: str | None = None
    ) -> list[ReleaseResult]:
        """The results of releases, of all or one nightly, of all or one scenario."""
        rows = self._db.execute(
            "select night, package, version, cell from answer where (?1 is null or night=?1) "
            "and (?2 is null or scenario=?2) order by night, scenario, package, rowid",
            (nightly, scenario),
        )
        return [
            ReleaseResult(n, package, version, Result.from_json(json.loads(cell)))
            for n, package, version, cell in rows
        ]

    def known(self, scenario: str) -> dict[tuple[str, str], ReleaseResult]:
        """By package and version: the newest certain result, otherwise the newest one."""
        results = newest(self.results(scenario=scenario))
        return {key[1:]: result for key, result in results.items()}

    def verdicts(
        self, nightly: int | None = None, scenario: str | None = None
    ) -> list[ScenarioResult]:
        """The results of our own scenarios."""
        rows = self._db.execute(
            "select * from verdict where (?1 is null or night=?1) "
            "and (?2 is null or scenario=?2) order by night, scenario",
            (nightly, scenario),
        )
        return [
            ScenarioResult(n, name, verdict, seconds, json.loads(result), run)
            for n, name, verdict, seconds, result, run in rows
        ]

    def changes(self, nightly: int | None = None) -> list[tuple[int, Change]]:
        """The changes, each with the number of its nightly."""
        rows = self._db.execute(
            "select * from change where ?1 is null or night=?1 order by night, rowid", (nightly,)
        )
        return [(number, Change(*row)) for number, *row in rows]

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


@contextmanager
def writing(file: Path) -> Iterator[History]:
    """Open a history for writing, and create it if there is none.

    Raises Inconclusive if another command writes to it, and the errors of ``reading``.
    """
    refuse_without_folder(file)
    with ExitStack() as stack, _one_line_errors(file):
        try:
            lock = stack.enter_context(locked(file.with_name(f".{file.name}.lock"), wait=False))
        except OSError as error:
            raise unwritten(file, error, "--history") from None
        if not lock:
            raise Inconclusive(f"another command is writing to {file}: wait until it has finished")
        db = stack.enter_context(closing(sqlite3.connect(file, isolation_level=None, timeout=60)))
        if not (pragma(db, "page_count") or file.stat().st_size):
            _create(db)
        _check(db, file)
        _upgrade(db)
        yield History(db, file)


@contextmanager
def reading(file: Path) -> Iterator[History]:
    """Open a history for reading; another command may write to it meanwhile.

    Raises UserError if the file does not exist, is another program's database, or has a newer
    schema, and Inconclusive if it is damaged or not a database.
    """
    if not file.is_file():
        raise UserError(f"no history {file}: create one with python -m harness watch")
    # Opening undoes an unfinished transaction of a killed writer, which needs write permission.
    writable = os.access(file, os.W_OK) and os.access(file.resolve().parent, os.W_OK)
    address = f"{file.resolve().as_uri()}?mode={'rw' if writable else 'ro'}"
    with (
        _one_line_errors(file),
        closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=60)) as db,
    ):
        db.execute("pragma query_only = on")
        _check(db, file)
        yield History(db, file)


@contextmanager
def _one_line_errors(file: Path) -> Iterator[None]:
    """Raise errors of SQLite as one line."""
    try:
        yield
    except sqlite3.Error as error:
        if "not a database" in str(error):
            raise not_a_history(file, error) from None
        if re.search(r"malformed|no such|decode|unsupported|unknown", str(error)):
            raise damaged(file, error) from None
        raise Inconclusive(f"{file}: {error}; its content has not changed") from None
    except (ValueError, KeyError, TypeError) as error:  # rows that no nightly wrote
        raise damaged(file, error) from None


def add_recorded(history: History, timestamp: str) -> None:
    """Add ``results.jsonl`` of the scenarios without any result, as a nightly of its own kind.

    Results of a nightly that did not finish do not count. ``timestamp`` is ISO, in UTC.
    """
    finished = {nightly.id for nightly in history.nightlies() if nightly.ended}
    have = {r.cell.scenario for r in history.results() if r.nightly in finished}
    results = [result for result in recorded_results() if result.cell.scenario not in have]
    if results:
        days = [n.day for n in history.nightlies() if n.kind is NightlyKind.RECORDED]
        day = max([*days, *(result.cell.first_day for result in results)])
        nightly = history.start(NightlyKind.RECORDED, day, timestamp, {})
        history.add_results(
            ReleaseResult(nightly.id, result.package, result.version, result.cell)
            for result in results
        )
        history.finish(nightly, timestamp)


def recorded_results() -> Iterator[ReleaseResult]:
    """Every recorded result of a sound scenario, once for each package that it is about."""
    for scenario in catalog.sound():
        for cell in result_file.statuses(scenario):
            for package in recorded_about(catalog.scenario(scenario), cell.pins):
                yield ReleaseResult(0, package, cell.pins[package], cell)


def recorded_about(scenario: Scenario, recorded: Mapping[str, str]) -> Iterable[str]:
    """The packages that a recorded result is about: all other pins follow from their release."""
    return [
        package
        for package, version in recorded.items()
        if package in scenario.pins and pins.complete(scenario, {package: version}) == recorded
    ]
