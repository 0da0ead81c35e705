"""The verbs that only look: list, show and grade."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness import catalog
from harness.grade import grade
from harness.records import RUN_FILE, read_json
from harness.report import print_header, print_trial, table, terminal
from harness.spec import Scenario, UserError


def print_list(*, as_json: bool) -> None:
    """All scenarios, as a table or as JSON."""
    if as_json:
        print(json.dumps([_summary(name) for name in catalog.names()], indent=2))
        return
    rows = []
    for name in catalog.names():
        told = catalog.scenario(name)
        rows.append(
            [
                name,
                ", ".join(told.variants),
                " ".join(lane.value for lane in told.lanes),
                str(told.ranks),
                _stack(told.pins),
                told.title,
            ]
        )
    columns = ["scenario", "variants", "lanes", "ranks", "pins", "the bug"]
    terminal().print(table("", columns, rows))


def _summary(name: str) -> dict[str, Any]:
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
        "date": told.date,
        "ranks": told.ranks,
        "lanes": [lane.value for lane in told.lanes],
        "variants": {
            variant: {"about": v.about, "expect": v.expect, "ranks": told.ranks_of(variant)}
            for variant, v in told.variants.items()
        },
    }


def print_scenario(name: str, given: Mapping[str, str]) -> None:
    """A scenario's story, provenance, variants, parameters, pins, shims and defects as diffs."""
    told = catalog.scenario(name)
    _check_pins(name, told, given)
    console = terminal()
    console.print(catalog.story(name))
    console.print(
        f"\nreport    {told.report[0]}", *(f"\n          {r}" for r in told.report[1:]), sep=""
    )
    console.print(f"fix       {told.fix}\nsymptom   {told.symptom}")
    console.print(f"trigger   only with {told.trigger}\nremedy    {told.remedy}")
    console.print(f"ranks     {told.ranks} (lanes: {', '.join(told.lanes)})\n\nvariants")
    for variant, v in told.variants.items():
        console.print(f"  {variant:<10} expected {v.expect!s:<8} {v.about}")
    console.print("\nparameters")
    params = catalog.load(name).Params
    for knob in fields(params):
        console.print(f"  scenario.{knob.name}={getattr(params(), knob.name)}")
    _print_upstream(name, told, given)


def _print_upstream(name: str, told: Scenario, given: Mapping[str, str]) -> None:
    from harness import overlay, pins, shims
    from harness.run import cache_folder

    console, cache = terminal(), cache_folder()
    chosen = pins.complete(told, given)
    stack = pins.stack(told, chosen, cache)
    console.print(f"\npins      {_stack(chosen)}, as of {stack.date}")
    for lane in told.lanes:
        console.print(f"shims on the {lane} lane")
        for point in shims.needed(chosen, lane):
            console.print(f"  {point.name}: {point.why}")
    for defect in told.defects:
        console.print(f"\ndefect {defect.name}: {defect.about}\n")
        with overlay.borrowed(stack, (defect,), cache) as lent:
            console.print(lent.diff, end="")


def _check_pins(name: str, told: Scenario, given: Mapping[str, str]) -> None:
    for pin in given:
        if pin not in told.pins:
            raise UserError(catalog.unknown(f"pin of {name}", pin, told.pins))


def _stack(pins: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in pins.items())


def print_grade(folder: Path, *, as_json: bool) -> int:
    """Grade a stored run, print the result, and return the exit code it stands for."""
    if not (folder / RUN_FILE).is_file():
        raise UserError(f"{folder} is no run folder: it has no {RUN_FILE}{_recent(folder)}")
    result = grade(folder)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
        return result.exit_code
    console = terminal()
    print_header(console, read_json(folder / RUN_FILE))
    for trial in result.trials:
        print_trial(console, trial)
    console.print(f"{result.scenario}: {result.verdict}")
    for reason in result.reasons:
        console.print(f"  {reason.splitlines()[0]}")
    return result.exit_code


def _recent(folder: Path, most: int = 5) -> str:
    """The newest run folders beside the one that was meant, to name the choices."""
    near = folder if folder.is_dir() else folder.parent
    runs: Sequence[Path] = sorted(near.glob(f"*/{RUN_FILE}"), reverse=True)[:most]
    return f". Choices: {', '.join(str(r.parent) for r in runs)}." if runs else ""
