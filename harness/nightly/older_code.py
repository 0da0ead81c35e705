"""Runs a recorded result again with the code of the commit that recorded it.

This decides whose a difference is: if that code still gives the recorded result, our code has
changed it; if it does not, the record was wrong, or its releases are no longer what they were.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from harness import catalog
from harness.ranges import affected
from harness.sweep.cell import Cell
from harness.system.errors import Inconclusive
from harness.system.files import ROOT


def commit_of(cell: Cell) -> str:
    """The commit that recorded a result.

    Raises Inconclusive where there is no history of it.
    """
    file = (catalog.folder(cell.scenario) / affected.FILE).relative_to(ROOT)
    found = ""
    # With its name in each commit: a scenario's folder may have moved.
    names = _git("log", "--follow", "--name-only", "--format=%H", "--", str(file)).split()
    for commit, name in zip(names[::2], names[1::2], strict=True):
        if not _has(_git("show", f"{commit}:{name}"), cell):
            break
        found = commit
    if not found:
        raise Inconclusive("the recorded result is not committed")
    return found


def _has(text: str, cell: Cell) -> bool:
    """Whether a file has this result."""
    kept = {"pins": cell.pins, "status": cell.status, "date": cell.date, "reason": cell.reason}
    # Older files say "answer" where newer ones say "status".
    facts = ({"status": fact.get("answer"), **fact} for fact in json.loads(text))
    return any(kept.items() <= fact.items() for fact in facts)


def found_at(commit: str, cell: Cell) -> Cell:
    """The result of the same releases, from a run with our code as of a commit.

    Raises Inconclusive if that code does not run here.
    """
    with tempfile.TemporaryDirectory() as folder:
        _unpack(commit, Path(folder))
        named = catalog.scenario(cell.scenario).pins
        words = [f"pins.{name}={v}" for name, v in cell.pins.items() if name in named]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "harness", "matrix", f"scenario={cell.scenario}", *words),
                *(f"launch={cell.lane}", "--again", "--json", "cells.json"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            (found,) = json.loads(Path(folder, "cells.json").read_text(encoding="utf-8"))
            return Cell.from_json(found)
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise Inconclusive(f"the code of {commit[:8]} did not run: {last}") from None


def _unpack(commit: str, folder: Path) -> None:
    archive = folder / "code.tar"
    _git("archive", "--output", str(archive), commit)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Inconclusive(f"no history of this checkout: {done.stderr.strip()}")
    return done.stdout
