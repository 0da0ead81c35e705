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
    scenario = catalog.scenario(name)
    pins = ", ".join(f"{pin} {version}" for pin, version in scenario.pins.items())
    lanes = " ".join(lane.value for lane in scenario.lanes)
    variants, ranks = ", ".join(scenario.variants), str(scenario.ranks)
    return [name, variants, lanes, ranks, pins, scenario.title]


def summary(name: str) -> dict[str, Any]:
    """A scenario's metadata as JSON values; for a broken one, the reason."""
    if name in catalog.broken():
        return {"name": name, "broken": catalog.broken()[name]}
    scenario = catalog.scenario(name)
    return {
        "name": name,
        "title": scenario.title,
        "report": list(scenario.report),
        "fix": scenario.fix,
        "symptom": scenario.symptom,
        "trigger": scenario.trigger,
        "remedy": scenario.remedy,
        "pins": dict(scenario.pins),
        "ranks": scenario.ranks,
        "lanes": [lane.value for lane in scenario.lanes],
        "variants": {
            name: {
                "about": scenario.about(name),
                "expect": variant.expect,
                "ranks": scenario.ranks_of(name),
                "pins": {**scenario.pins, **scenario.pins_of(name)},
            }
            for name, variant in scenario.variants.items()
        },
    }
