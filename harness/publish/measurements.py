"""docs/measurements.md: figures that were measured, from ``docs/measurements.toml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import HARMS
from harness.publish.docs_tables import link
from harness.system.documents import toml_of
from harness.system.files import ROOT
from harness.system.text import markdown, markdown_table


def page() -> str:
    """The text of the page."""
    content = toml_of((ROOT / "docs" / "measurements.toml").read_text(encoding="utf-8"))
    parts = [
        "# Measurements",
        "<!-- Made by `python -m harness pages` from measurements.toml. Write nothing here. -->",
        "Each figure has the command that measures it, the machine, the day, and the commit that "
        "recorded it. Several values are those of several runs.",
        *(part for program in content["program"] for part in _section(program)),
        *_guard_on_bugs(content["guard"]),
    ]
    return "\n\n".join(parts) + "\n"


def _section(program: dict[str, Any]) -> Iterator[str]:
    yield f"## {program['name']}"
    yield " ".join(filter(None, (f"`{program['command']}`", program.get("about"))))
    columns = ["figure", "value", "machine", "day", "commit"]
    rows = [{**row, "value": f"{row['value']} {row.get('unit', '')}"} for row in program["figures"]]
    yield markdown_table(
        columns, ([markdown(row[name].strip()) for name in columns] for row in rows)
    )


def _guard_on_bugs(guard: dict[str, Any]) -> Iterator[str]:
    """Which bugs of the catalogue ``guard`` detects, by harm and one by one."""
    detected = [*guard["detected"], *guard["other_alarm"]]
    missed = {name: group["reason"] for group in guard["missed"] for name in group["bugs"]}
    harms = [Counter(catalog.scenario(name).harm for name in names) for names in (detected, missed)]
    yield "## Which bugs guard detects"
    run = f"`{guard['command']}`, {guard['machine']}, {guard['day']}, commit {guard['commit']}."
    yield f"{run} {guard['about']}"
    counts = [[harm, *(str(of[harm]) for of in harms)] for harm in HARMS]
    yield markdown_table(["what the bug does", "detected", "missed"], counts)
    rows = [[link(name), "detected", ""] for name in guard["detected"]]
    why = "with a right alarm of another bug in a variant without this one"
    rows += [[link(name), "detected", why] for name in guard["other_alarm"]]
    rows += [[link(name), "missed", markdown(reason)] for name, reason in missed.items()]
    yield markdown_table(["bug", "guard", "why"], sorted(rows))
    names = ", ".join(map(link, guard["no_training"]))
    yield f"Without a training that `guard` can watch: {names}."
