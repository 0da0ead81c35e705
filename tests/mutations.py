"""Run mutations and keep the result of each in the scenario's mutations.json.

    python -m tests.mutations                          all of them
    python -m tests.mutations bf16_clip --only fixed_no_clipping

Exit code 1 where one came out as the documented symptom or as clean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module

from harness.bugs import catalog
from harness.bugs.api.spec import Outcome
from harness.bugs.results import Result, RunResult
from harness.cli import pages
from harness.run import command_line
from harness.run.run import run
from harness.system import machine
from harness.system.files import write_whole
from harness.system.terminal import terminal
from scenarios.common.mutation import Mutation


def main(arguments: list[str]) -> int:
    by_scenario = {name: mutations(name) for name in catalog.names() if mutations(name)}
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *by_scenario], default=[])
    parser.add_argument("--only", help="the name of one mutation")
    options = parser.parse_args(arguments)
    failures = 0
    for scenario in options.scenario or by_scenario:
        chosen = [m for m in by_scenario[scenario] if options.only in (None, m.name)]
        failures += _record(scenario, chosen)
    terminal().print(f"{failures} came out as the documented bug or as clean")
    return 1 if failures else 0


def mutations(scenario: str) -> tuple[Mutation, ...]:
    """The mutations of a scenario; empty where it has none."""
    if not (catalog.folder(scenario) / "mutations.py").is_file():
        return ()
    module = f"{catalog.places()[scenario].rpartition('.')[0]}.mutations"
    table: tuple[Mutation, ...] = import_module(module).MUTATIONS
    return table


def _record(scenario: str, chosen: Sequence[Mutation]) -> int:
    """Run mutations and store their results; returns how many came out wrong."""
    trials = list(_trials(scenario, chosen))
    abouts = {m.name: (m.variant, m.defect.about) for m in mutations(scenario)}
    file = catalog.folder(scenario) / catalog.MUTATIONS
    rows = json.loads(file.read_text()) if file.is_file() else {}
    rows |= {trial.variant: _row(trial, *abouts[trial.variant]) for trial in trials}
    ordered = {name: rows[name] for name in abouts if name in rows}
    write_whole(file, json.dumps(ordered, indent=1) + "\n")
    pages.write([scenario])
    return sum(trial.outcome is not Outcome.INCONCLUSIVE for trial in trials)


def _trials(scenario: str, chosen: Sequence[Mutation]) -> Iterator[Result]:
    """Run the mutations of each variant separately: releases differ in their files, and every rank
    must load all files that the run's defects name."""
    for variant in dict.fromkeys(m.variant for m in chosen):
        yield from _run(scenario, [m for m in chosen if m.variant == variant]).trials


def _run(scenario: str, chosen: Sequence[Mutation]) -> RunResult:
    """Run mutations of a scenario; the catalogue contains them meanwhile."""
    bug_of = catalog.scenario
    original = bug_of(scenario)
    mutated = replace(
        original, variants={**original.variants, **{m.name: m.of(original) for m in chosen}}
    )
    catalog.scenario = lambda name: mutated if name == scenario else bug_of(name)
    try:
        names = ",".join(m.name for m in chosen)
        config = command_line.compose(
            [f"scenario={scenario}", f"variant=[{names}]", "launch.timeout=120"]
        )
        return run(config)[0]
    finally:
        catalog.scenario = bug_of


def _row(trial: Result, variant: str, about: str) -> dict[str, str]:
    reason = trial.reason.splitlines()[0] if trial.reason else ""
    facts = machine.facts()
    return {
        "variant": variant,
        "about": about,
        "outcome": str(trial.outcome),
        "reason": reason,
        "date": time.strftime("%Y-%m-%d"),
        "torch": str(facts["torch"]),
        "python": facts["python"],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
