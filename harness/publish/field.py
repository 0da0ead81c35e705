"""docs/field.md: the bugs that other papers and tools name, and what this catalogue has of them.

A scenario names the bugs that it answers in ``named_by``; ``field.toml`` has all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.publish.docs_tables import link
from harness.publish.documents import slug
from harness.system.documents import toml_of
from harness.system.text import markdown, markdown_table

FILE = Path(__file__).with_name("field.toml")

SCENARIO = "scenario"
STATUSES = {
    SCENARIO: "a scenario reproduces it",
    "near": "no scenario reproduces it, but one has a bug of the same kind",
    "open": "nothing seems to prevent a scenario on a CPU, and none exists yet; the reason says "
    "what it needs, and what a run of the report showed",
    "not reproduced": "we ran what the report says, and the result was right",
    "not on these machines": "it needs a kernel, several GPUs, other hardware, or code that is not "
    "public",
    "not silent": "it raises, hangs, or costs only time",
    "other": "it is no bug of a training in a release: a fault of a user's script, a mutation, "
    "code that no release had, inference, a metric, or a property of a method",
    "not found": "no public text that we found describes it",
}
"""What the catalogue has of a bug, with the meaning."""
_OTHERS = ", ".join(status for status in STATUSES if status != SCENARIO)


@dataclass(frozen=True)
class Entry:
    """A bug that a list names, or ``count`` bugs in one row."""

    id: str
    """``owner/repository#number``, or what the list calls it."""
    what: str
    status: str
    why: str = ""
    like: tuple[str, ...] = ()
    """Scenarios that have it, or that are near."""
    link: str = ""
    count: int = 1

    @property
    def row(self) -> list[str]:
        where = ", ".join(map(link, self.like))
        repository, mark, number = self.id.partition("#")
        target = f"https://github.com/{repository}/issues/{number}" if mark else self.link
        short = self.id.rpartition("/")[2].replace("#", " ")
        bug = f"[{short}]({target})" if target else short
        text = markdown(self.what) + (f" ({self.count} bugs)" if self.count > 1 else "")
        return [bug, text.strip(), self.status, "; ".join(filter(None, (where, self.why)))]


@dataclass(frozen=True)
class BugList:
    """The list of a paper, a tool or a corpus."""

    key: str
    """What ``named_by`` calls it."""
    name: str
    about: str
    link: str
    entries: tuple[Entry, ...]

    def total(self, status: str) -> int:
        """The number of bugs with a status."""
        return sum(entry.count for entry in self.entries if entry.status == status)


def bug_lists() -> list[BugList]:
    """All lists. Raises ValueError if a scenario or ``field.toml`` names what does not exist."""
    content = toml_of(FILE.read_text(encoding="utf-8"))
    answered = _answered()
    if unknown := set(answered) - set(content):
        raise ValueError(
            f"named_by has {', '.join(sorted(unknown))}, not one of {', '.join(content)}"
        )
    return [_bug_list(key, table, answered.get(key, {})) for key, table in content.items()]


def page() -> str:
    """The text of docs/field.md."""
    lists = bug_lists()
    columns = ["list", "bugs", *STATUSES]
    totals = []
    for each in lists:
        numbers = [each.total(status) for status in STATUSES]
        cells = (str(number or "") for number in numbers)
        totals.append([f"[{each.name}](#{slug(each.name)})", str(sum(numbers)), *cells])
    meanings = [[f"*{status}*", meaning] for status, meaning in STATUSES.items()]
    parts = [
        "# The bugs that the field names",
        "<!-- Made by `python -m harness pages`. Write nothing here. -->",
        "Papers and tools about silent errors have lists of bugs. This page has each bug of these "
        "lists, and says which scenario reproduces it, or why none does. Figures after *run* are "
        "our own, on a CPU, torch 2.13.0.",
        markdown_table(["status", "meaning"], meanings),
        markdown_table(columns, totals),
        *(part for each in lists for part in _section(each)),
    ]
    return "\n\n".join(parts) + "\n"


def _answered() -> dict[str, dict[str, list[str]]]:
    """The scenarios that reproduce a bug, by list and bug."""
    answered: dict[str, dict[str, list[str]]] = {}
    for name in catalog.sound():
        for entry in catalog.scenario(name).named_by:
            key, _, bug = entry.partition(": ")
            answered.setdefault(key, {}).setdefault(bug, []).append(name)
    return answered


def _bug_list(key: str, table: Mapping[str, Any], answered: Mapping[str, list[str]]) -> BugList:
    others = tuple(Entry(**{**bug, "like": tuple(bug.get("like", ()))}) for bug in table["bugs"])
    for entry in others:
        if entry.id in answered:
            raise ValueError(f"{FILE.name} has {key}: {entry.id}, which a scenario reproduces")
        if entry.status not in STATUSES or entry.status == SCENARIO:
            raise ValueError(f"{key}: {entry.id} is '{entry.status}', not one of {_OTHERS}")
    reproduced = tuple(
        Entry(bug, catalog.scenario(names[0]).title, SCENARIO, like=tuple(names))
        for bug, names in sorted(answered.items())
    )
    entries = reproduced + others
    if (total := sum(entry.count for entry in entries)) != table["total"]:
        raise ValueError(f"{key} has {total} bugs, not {table['total']}")
    return BugList(key, table["name"], table["about"], table.get("link", ""), entries)


def _section(bug_list: BugList) -> Iterator[str]:
    yield f"## {bug_list.name}"
    yield bug_list.about + (f" <{bug_list.link}>" if bug_list.link else "")
    columns = ["bug", "what goes wrong", "status", "scenario, or the reason"]
    yield markdown_table(columns, (entry.row for entry in bug_list.entries))
