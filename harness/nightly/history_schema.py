"""The schema of a history file, and the checks of what a file contains before it is read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

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


TABLES = {"night", "release", "answer", "verdict", "change"}


def create(db: sqlite3.Connection) -> None:
    db.executescript(
        f"begin; {SCHEMA} {CONFIRMATIONS} pragma application_id = {APPLICATION}; "
        f"pragma user_version = {VERSION}; commit;"
    )


def upgrade(db: sqlite3.Connection) -> None:
    """Bring a checked file of an older version to this one."""
    if pragma(db, "user_version") < VERSION:
        db.executescript(f"begin; {CONFIRMATIONS} pragma user_version = {VERSION}; commit;")


def check(db: sqlite3.Connection, file: Path) -> None:
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
