"""list the scenarios"""

from __future__ import annotations

import json
from typing import Any

from harness import catalog
from harness.commands import Arguments
from harness.errors import ExitCode
from harness.report import table, terminal


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.json:
        terminal().print(json.dumps([summary(name) for name in catalog.names()], indent=2))
    else:
        columns = ["scenario", "variants", "lanes", "ranks", "pins", "the bug"]
        terminal().print(table("", columns, [_row(name) for name in catalog.names()]))
    return ExitCode.AS_EXPECTED


def _row(name: str) -> list[str]:
    if name in catalog.broken():
        return [name, "broken", "", "", "", catalog.broken()[name]]
    told = catalog.scenario(name)
    pins = ", ".join(f"{pin} {version}" for pin, version in told.pins.items())
    lanes = " ".join(lane.value for lane in told.lanes)
    return [name, ", ".join(told.variants), lanes, str(told.ranks), pins, told.title]


def summary(name: str) -> dict[str, Any]:
    """A scenario's metadata as JSON values; of a broken one, what is wrong with its module."""
    if name in catalog.broken():
        return {"name": name, "broken": catalog.broken()[name]}
    told = catalog.scenario(name)
    return {
        "name": name,
        "title": told.title,
        "report": list(told.report),
        "fix": told.fix,
        "symptom": told.symptom,
        "trigger": told.trigger,
        "remedy": told.remedy,
        "pins": dict(told.pins),
        "ranks": told.ranks,
        "lanes": [lane.value for lane in told.lanes],
        "variants": {
            name: {
                "about": told.about(name),
                "expect": variant.expect,
                "ranks": told.ranks_of(name),
                "pins": {**told.pins, **told.pins_of(name)},
            }
            for name, variant in told.variants.items()
        },
    }
