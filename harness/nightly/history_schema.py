"""The schema of a history file, and the checks of what a file contains before it is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.api.shapes import (
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
from harness.api.spec import Verdict
from harness.nightly.history_rows import Kind
from harness.sweep.cell import Cell
from harness.system.errors import Inconclusive, UserError
from harness.system.text import LONGEST

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


def _is_day(value: Any) -> str:
    """A day (ISO)."""
    with suppress(TypeError, ValueError):
        if date.fromisoformat(value).isoformat() == value:
            return ""
    return f"is {value!r}, not a day"


def _is_version(value: Any) -> str:
    """A version of a release."""
    try:
        return TEXT(value) or str(Version(value) and "")
    except InvalidVersion:
        return f"is {value!r}, not a version"


def _as_json(shape: Shape) -> Shape:
    """Text with JSON of this shape."""

    def check(value: Any) -> str:
        try:
            return TEXT(value) or shape(json.loads(value))
        except (ValueError, RecursionError):
            return "is not JSON"

    return check


def _is_cell(value: Any) -> str:
    """A stored cell."""
    try:
        return str(Cell.from_json(value) and "")
    except ValueError as error:
        return f"contains {error}"


def _is_result(value: Any) -> str:
    """A RunResult, as far as nightlies and the site read it."""
    if not isinstance(value, dict):
        return "is not the result of a run"
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
    CONFIRMATION: {"night": WHOLE, "scenario": LINE, "pins": _as_json(by_name(_is_version))},
}
"""The columns of the tables. SQLite does not enforce types, and a file can be damaged."""


def create(db: sqlite3.Connection) -> None:
    db.executescript(
        f"begin; {SCHEMA} {CONFIRMATIONS} pragma application_id = {APPLICATION}; "
        f"pragma user_version = {VERSION}; commit;"
    )


def upgrade(db: sqlite3.Connection) -> None:
    """Bring a checked file of an older version to this one."""
    if pragma(db, "user_version") < VERSION:
        db.executescript(f"begin; {CONFIRMATIONS} pragma user_version = {VERSION}; commit;")


def columns(db: sqlite3.Connection) -> Mapping[str, Mapping[str, Shape]]:
    """The tables of a file, which may be of an older version, with their columns."""
    older = pragma(db, "user_version") < VERSION
    return {name: of for name, of in COLUMNS.items() if not (older and name == CONFIRMATION)}


def check(db: sqlite3.Connection, file: Path) -> None:
    """Raise an error for a file that is not a history, or has rows that no nightly wrote."""
    if not pragma(db, "page_count"):
        raise not_a_history(file, "it is empty")
    tables = {name for (name,) in db.execute("select name from sqlite_master")}
    ours = pragma(db, "application_id") == APPLICATION
    if not ours and not tables.issuperset(columns(db)):
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
    for wrong in _wrong_rows(db):
        raise damaged(file, wrong)


def _wrong_rows(db: sqlite3.Connection) -> Iterator[str]:
    """What is wrong with rows that no nightly wrote."""
    for table, of in columns(db).items():
        for number, *row in db.execute(f"select rowid, {', '.join(of)} from {table}"):
            for (name, shape), value in zip(of.items(), row, strict=True):
                if wrong := shape(value):
                    yield f"{table} {number}: {name} {wrong}"


def damaged(file: Path, why: object) -> Inconclusive:
    reason = " ".join(str(why).split())
    reason = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]} ..."
    return Inconclusive(f"{file} is damaged ({reason}): restore a copy of it")


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
