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
from harness.check.source import content_of, read_file
from harness.python.results import Acceptance
from harness.system.documents import table_at
from harness.system.errors import UserError, unknown
from harness.system.text import short

FILE, PROJECT, TABLE = "distributed-bugs.toml", "pyproject.toml", "distributed-bugs"
KEYS = ("bug", "reason", "until")
EXAMPLE = '[[accepted]] bug = "fp16_overflow" reason = "why" until = 2027-01-31'


def read(file: Path | None) -> dict[str, Acceptance]:
    """Read the accepted bugs, by name, from a file or from the files of the working directory.

    Raises UserError for a file that cannot be read, and for an entry that is not valid.
    """
    for path in files(file):
        if file or os.path.isfile(path):
            name = f"{path}, which may list accepted bugs,"
            document = content_of(name, read_file(path).text, "TOML")
            try:
                is_project = path.name == PROJECT
                table = table_at(document, "tool", TABLE) if is_project else document
                if table or not is_project:
                    return _by_bug(table, str(path))
            except ValueError as error:
                raise UserError(f"{path}: {error}") from None
    return {}


def files(file: Path | None) -> Sequence[Path]:
    """The files that may list accepted bugs."""
    return (file,) if file else (Path(FILE), Path(PROJECT))


def _by_bug(document: Mapping[str, Any], file: str) -> dict[str, Acceptance]:
    if others := sorted(set(document) - {"accepted"}):
        raise ValueError(unknown("key", short(others[0]), ["accepted"]))
    entries = document.get("accepted", [])
    if not isinstance(entries, list):
        raise ValueError(f"accepted is no list of tables: write {EXAMPLE}, a line each")
    acceptances: dict[str, Acceptance] = {}
    for entry in entries:
        acceptance = _acceptance(entry, file)
        if acceptance.bug in acceptances:
            raise ValueError(f"{acceptance.bug} is accepted twice")
        acceptances[acceptance.bug] = acceptance
    return acceptances


def _acceptance(entry: Any, file: str) -> Acceptance:
    if not isinstance(entry, dict) or not {"bug", "reason"} <= set(entry):
        raise ValueError(f"an accepted bug needs a bug and a reason: write {EXAMPLE}")
    for key in entry:
        if key not in KEYS:
            raise ValueError(unknown("key", short(key), KEYS))
    bug, reason, until = (entry.get(key) for key in KEYS)
    if bug not in catalog.names():
        raise ValueError(unknown("bug", short(str(bug)), catalog.names()))
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"the reason of {bug} is empty")
    day = until.isoformat() if type(until) is date else until  # TOML has days
    try:
        until = None if day is None else date.fromisoformat(day).isoformat()
    except (TypeError, ValueError):
        raise ValueError(f"until of {bug} is no day: write one like 2027-01-31") from None
    return Acceptance(bug, " ".join(reason.split()), until, file)
