"""list the scenarios

    python -m harness list
    python -m harness list --upstream transformers --alive
    python -m harness list --harm "ruins training" --visibility silent --json

A scenario is listed if it meets all conditions. The command show prints all about one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from textwrap import fill, indent
from typing import Any, TypedDict

from harness.bugs import catalog, remedies
from harness.bugs.api.settings import in_words
from harness.bugs.api.spec import HARMS, VISIBILITIES, Outcome
from harness.bugs.periods import alive
from harness.cli import Arguments
from harness.system.errors import ExitCode, UserError, unknown
from harness.system.terminal import table, terminal

WIDE = 165
"""The columns that a line for each bug needs."""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("--upstream", metavar="PACKAGE", help="bugs of this package")
    parser.add_argument(
        "--alive", action="store_true", help="bugs that the newest tested release still has"
    )
    parser.add_argument("--harm", metavar="HARM", help="; ".join(HARMS))
    parser.add_argument("--visibility", metavar="VISIBILITY", help="; ".join(VISIBILITIES))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    names = _chosen(options)
    if options.json:
        content = json.dumps([summary(name) for name in names], indent=2)
        terminal().print_format(content + "\n")
    else:
        _print(names)
    return ExitCode.AS_EXPECTED


def _print(names: Iterable[str]) -> None:
    """Print a line for each bug, or two on a narrow terminal, so that no name is broken."""
    console, rows = terminal(), [_row(name) for name in names]
    if not console.is_interactive or console.width >= WIDE:
        console.print(table("", ["scenario", "release", "the bug"], rows))
        return
    for name, release, bug in rows:
        console.print(f"{name}  {release}", style="bold", highlight=False)
        console.print(indent(fill(bug, console.width - 5), "    "), markup=False, highlight=False)


def _chosen(options: Any) -> list[str]:
    """The scenarios that meet all conditions. A broken one is listed only without conditions."""
    upstreams = sorted({catalog.subject(name) for name in catalog.sound()})
    choices = {"upstream": upstreams, "harm": HARMS, "visibility": VISIBILITIES}
    for option, values in choices.items():
        if (choice := getattr(options, option)) is not None and choice not in values:
            raise UserError(unknown(option, choice, values))
    if not (options.upstream or options.harm or options.visibility or options.alive):
        return list(catalog.names())
    return [
        name
        for name in catalog.sound()
        if options.upstream in (None, catalog.subject(name))
        and options.harm in (None, catalog.scenario(name).harm)
        and options.visibility in (None, catalog.scenario(name).visibility)
        and (not options.alive or alive(name) is not None)
    ]


def _row(name: str) -> list[str]:
    if why := catalog.why_broken(name):
        return [name, "broken", why]
    scenario = catalog.scenario(name)
    upstream = catalog.subject(name)
    return [name, f"{upstream} {scenario.pins.get(upstream, '')}".strip(), scenario.title]


class BrokenJson(TypedDict):
    """A scenario that cannot be used."""

    name: str
    broken: str


class VariantJson(TypedDict):
    """One way to run a scenario."""

    about: str
    expect: Outcome | None
    ranks: int
    pins: dict[str, str]


class ListedJson(TypedDict):
    """A bug in the JSON of ``list``."""

    name: str
    title: str
    upstream: str
    harm: str
    visibility: str
    alive: dict[str, str] | None
    known_upstream: bool
    known_in_part: str
    settings: dict[str, str]
    report: list[str]
    fix: str | None
    symptom: str
    trigger: str
    remedy: str
    pins: dict[str, str]
    ranks: int
    lanes: list[str]
    variants: dict[str, VariantJson]


def summary(name: str) -> ListedJson | BrokenJson:
    """A scenario's metadata as JSON values; for a broken one, the reason."""
    if why := catalog.why_broken(name):
        return {"name": name, "broken": why}
    scenario, bug = catalog.scenario(name), alive(name)
    return {
        "name": name,
        "title": scenario.title,
        "upstream": catalog.subject(name),
        "harm": scenario.harm,
        "visibility": scenario.visibility,
        "alive": {"release": bug.release, "variant": bug.variant} if bug else None,
        "known_upstream": scenario.known_upstream,
        "known_in_part": scenario.known_in_part,
        "settings": in_words(scenario.settings),
        "report": list(scenario.report),
        "fix": scenario.fix,
        "symptom": scenario.symptom,
        "trigger": scenario.trigger,
        "remedy": remedies.of(name),
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
