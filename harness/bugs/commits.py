"""The commits that introduced a bug and that fixed it, as bisect found them.

``commits.json`` in a scenario's folder has them; ``python -m harness bisect ... --record`` writes
it. Never edit it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from harness.bugs import bug_file, catalog
from harness.bugs.packages import upstreams
from harness.bugs.results import Status
from harness.system.files import write_whole, writing

FILE = "commits.json"


@dataclass(frozen=True)
class BugCommit:
    """A commit after which a bug's status is another one than before."""

    package: str
    commit: str
    status: Status
    """The status since this commit."""
    title: str
    day: str
    files: tuple[str, ...]
    """The files with the bug that it changed, by their paths in the repository."""
    skipped: tuple[str, ...] = ()
    """Commits just before it whose status is not certain: each of them may be the one."""

    @property
    def repository(self) -> str:
        return f"https://github.com/{upstreams()[self.package].repository}"

    @property
    def link(self) -> str:
        return f"{self.repository}/commit/{self.commit}"

    @property
    def pull(self) -> str:
        """The pull request that the title names; empty if it names none."""
        number = re.search(r"\(#(\d+)\)", self.title)
        return f"{self.repository}/pull/{number[1]}" if number else ""

    @property
    def did(self) -> str:
        """What the commit did to the bug, as a verb."""
        return "introduced it" if self.status is Status.AFFECTED else "fixed it"

    def __str__(self) -> str:
        return f"{self.commit[:12]} of {self.day} {self.did}: {self.title}"


def of(scenario: str) -> list[BugCommit]:
    """The recorded commits of a scenario, oldest first; empty where there is no file."""
    file = catalog.folder(scenario) / FILE
    if not file.is_file():
        return []
    rows = json.loads(file.read_text(encoding="utf-8"))
    return [bug_file.built(BugCommit, row, FILE) for row in rows]


def record(scenario: str, changes: Sequence[BugCommit]) -> None:
    """Add commits to a scenario's file; a search that found none leaves it as it is."""
    if not changes:
        return
    by_commit = {change.commit: change for change in (*of(scenario), *changes)}
    ordered = sorted(by_commit.values(), key=lambda change: change.day)
    file = catalog.folder(scenario) / FILE
    with writing(file, "checkout"):
        write_whole(file, json.dumps([asdict(change) for change in ordered], indent=1) + "\n")


def spans(scenario: str) -> list[tuple[BugCommit, BugCommit | None]]:
    """Each commit that introduced the bug, with the one that fixed it; None if none did."""
    pairs: list[tuple[BugCommit, BugCommit | None]] = []
    for change in of(scenario):
        if change.status is Status.AFFECTED:
            pairs.append((change, None))
        elif pairs and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], change)
    return pairs
