"""A team can accept bugs: each acceptance has a reason and may have a last day.

``distributed-bugs.toml`` lists them, or the table ``tool.distributed-bugs`` of pyproject.toml.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.check.source import read_file
from harness.python.results import Acceptance
from harness.system.documents import table_at, toml_of
from harness.system.errors import UserError, unknown
from harness.system.text import one_line, short

FILE, PROJECT, TABLE = "distributed-bugs.toml", "pyproject.toml", "distributed-bugs"
KEYS = ("bug", "reason", "until")
EXAMPLE = '[[accepted]] bug = "fp16_overflow" reason = "why" until = 2027-01-31'


def read(file: Path | None) -> dict[str, Acceptance]:
    """Read the accepted bugs, by name, from a file or from the files of the working directory.

    Raises UserError for a file that cannot be read, and for an entry that is not valid.
    """
    for path in files(file):
        if file or os.path.isfile(path):
            document = _document(path)
            if document or path.name != PROJECT:
                return _by_bug(document, path)
    return {}


def files(file: Path | None) -> Sequence[Path]:
    """The files that may list accepted bugs."""
    return (file,) if file else (Path(FILE), Path(PROJECT))


def _document(path: Path) -> Mapping[str, Any]:
    """The content of a file, or that of our table in a pyproject.toml."""
    text = read_file(path).text
    try:
        document = toml_of(text)
    except ValueError as error:
        raise UserError(
            f"{path}, which may list accepted bugs, cannot be read: it is no valid TOML "
            f"({one_line(str(error))})"
        ) from None
    try:
        return table_at(document, "tool", TABLE) if path.name == PROJECT else document
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _by_bug(document: Mapping[str, Any], path: Path) -> dict[str, Acceptance]:
    if others := sorted(set(document) - {"accepted"}):
        raise UserError(f"{path}: {unknown('key', short(others[0]), ['accepted'])}")
    entries = document.get("accepted", [])
    if not isinstance(entries, list):
        raise UserError(f"{path}: accepted is no list of tables: write {EXAMPLE}, a line each")
    acceptances: dict[str, Acceptance] = {}
    for entry in entries:
        acceptance = _acceptance(entry, path)
        if acceptance.bug in acceptances:
            raise UserError(f"{path}: {acceptance.bug} is accepted twice")
        acceptances[acceptance.bug] = acceptance
    return acceptances


def _acceptance(entry: Any, path: Path) -> Acceptance:
    if not isinstance(entry, dict) or not {"bug", "reason"} <= set(entry):
        raise UserError(f"{path}: an accepted bug needs a bug and a reason: write {EXAMPLE}")
    for key in entry:
        if key not in KEYS:
            raise UserError(f"{path}: {unknown('key', short(key), KEYS)}")
    bug, reason, until = (entry.get(key) for key in KEYS)
    if bug not in catalog.names():
        raise UserError(f"{path}: {unknown('bug', short(str(bug)), catalog.names())}")
    if not isinstance(reason, str) or not reason.strip():
        raise UserError(f"{path}: the reason of {bug} is empty")
    return Acceptance(bug, " ".join(reason.split()), _day(until, bug, path), str(path))


def _day(value: Any, bug: str, path: Path) -> str | None:
    """An ISO day, from a date in TOML or from a text."""
    if value is None:
        return None
    if type(value) is date:
        return value.isoformat()
    try:
        return date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise UserError(f"{path}: until of {bug} is no day: write one like 2027-01-31") from None
