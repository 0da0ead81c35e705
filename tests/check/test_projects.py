"""What ``check`` knows of published projects: their releases are facts, in projects.json.

Each entry has the commit of a file with requirements, the day of that commit, and
the releases that the file installs on that day, as ``check -r FILE --as-of DAY`` finds them.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from harness.bugs import catalog, result_file
from harness.check.bug_status import THERE, BugStatus, recorded
from harness.check.environment import Environment
from harness.check.installed import Installed, OneOf, described

PROJECTS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("projects.json").read_text(encoding="utf-8")
)
SINCE = "2023-11-23"
"""Three years: older releases are often impossible to install."""


def statuses(packages: dict[str, str]) -> Counter[BugStatus]:
    """How many bugs have each status, of those that concern these releases."""
    entries = {name: _installed(name, version) for name, version in packages.items()}
    checked = recorded(catalog.sound(), Environment(entries, "a file", False))
    return Counter(bug.status for bug in checked if bug.status is not BugStatus.DOES_NOT_APPLY)


def _installed(name: str, version: str) -> Installed:
    release, *others = version.split(" or ")
    return OneOf((release, *others), "several") if others else described(release)


def unknown(since: str = "") -> tuple[int, int]:
    """How many answers are unknown about projects since a day, and how many there are."""
    counts = sum((count for day, count in _all() if day >= since), Counter())
    return counts[BugStatus.UNKNOWN], counts.total()


@cache
def _all() -> list[tuple[str, Counter[BugStatus]]]:
    return [(project["day"], statuses(project["packages"])) for project in PROJECTS]


def test_few_answers_about_published_projects_are_unknown() -> None:
    assert len(PROJECTS) >= 40
    assert len({project["kind"] for project in PROJECTS}) >= 15
    few, all_ = unknown(SINCE)
    assert few <= RECENT * all_, f"{few} of {all_}"
    few, all_ = unknown()
    assert few <= ALL * all_, f"{few} of {all_}"


def test_of_the_newest_releases_nothing_is_unknown() -> None:
    names = {name for scenario in catalog.sound() for name in catalog.scenario(scenario).pins}
    counts = statuses({name: result_file.tested_releases(name)[-1] for name in names})
    assert counts[BugStatus.UNKNOWN] == 0
    assert sum(counts[status] for status in THERE) > 20


RECENT, ALL = 0.016, 0.025
"""The most answers that may be unknown. Each new bug and each lost result counts here, and each
bug that only newer releases than a project's can be tested for."""
