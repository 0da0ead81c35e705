"""Run mutations and write down what was told of each.

    python -m tests.mutations                          all of them, and docs/mutations.md
    python -m tests.mutations bf16_clip --only fixed_no_clipping

Exit code 1 where one came out as the documented symptom or as clean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import catalog, config, machine
from harness.files import ROOT, write_whole
from harness.report import terminal
from harness.spec import Outcome, RunResult, TrialResult
from harness.trial.run import run
from tests.mutations import Mutation, mutations

PAGE = ROOT / "docs" / "mutations.md"
KEPT = Path(__file__).parent / "told.json"
"""What was told when each was run last."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[[], *mutations()], default=[])
    parser.add_argument("--only", help="the name of one mutation")
    options = parser.parse_args(arguments)
    wrong, answers = 0, list[tuple[str, TrialResult]]()
    for scenario in options.scenario or mutations():
        chosen = [m for m in mutations()[scenario] if options.only in (None, m.name)]
        for trial in _trials(scenario, chosen):
            wrong += trial.outcome is not Outcome.INCONCLUSIVE
            answers.append((scenario, trial))
    told = json.loads(KEPT.read_text()) if KEPT.is_file() else {}  # another run may have written
    for scenario, trial in answers:
        told.setdefault(scenario, {})[trial.variant] = _told(trial)
    write_whole(KEPT, json.dumps(told, indent=1, sort_keys=True) + "\n")
    write_whole(PAGE, page(told))
    terminal().print(f"{wrong} came out as if they were the documented bug, or none")
    return 1 if wrong else 0


def _trials(scenario: str, chosen: Sequence[Mutation]) -> Iterator[TrialResult]:
    """Those of one variant in a run: a release need not have the files that another's edits need,
    and every rank must have loaded each that a run's defects name."""
    for variant in dict.fromkeys(m.variant for m in chosen):
        yield from _run(scenario, [m for m in chosen if m.variant == variant]).trials


def _run(scenario: str, chosen: Sequence[Mutation]) -> RunResult:
    """Run a scenario's variants with mutations in them; the catalogue knows them meanwhile."""
    module: Any = catalog.load(scenario)
    own = module.SCENARIO
    module.SCENARIO = replace(own, variants={**own.variants, **{m.name: m.of(own) for m in chosen}})
    try:
        names = ",".join(m.name for m in chosen)
        asked = config.compose([f"scenario={scenario}", f"variant=[{names}]", "launch.timeout=120"])
        return run(asked)[0]
    finally:
        module.SCENARIO = own


def _told(trial: TrialResult) -> dict[str, str]:
    first = trial.reason.splitlines()[0] if trial.reason else ""
    facts = machine.facts()
    return {
        "outcome": str(trial.outcome), "told": first, "date": time.strftime("%Y-%m-%d"),
        "torch": str(facts["torch"]), "python": facts["python"],
    }  # fmt: skip


def page(told: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    """The table of all mutations, in Markdown."""
    rows = [
        line for scenario, found in mutations().items() for line in _rows(scenario, found, told)
    ]
    lines = [
        "# Mutations of upstream",
        "",
        "Defects that are not the documented one, put into upstream by the same mechanism, and",
        "what was told of each. None may come out as the documented symptom, and none as clean.",
        "Made by `python -m tests.mutations`, on the CPU.",
        "",
        "| scenario | put into | the mutation | outcome | what was told |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _rows(
    scenario: str,
    found: Sequence[Mutation],
    told: Mapping[str, Mapping[str, Mapping[str, str]]],
) -> Iterator[str]:
    for each in found:
        answer = told.get(scenario, {}).get(each.name, {"outcome": "not run", "told": ""})
        cells = [
            f"`{scenario}`", f"`{each.variant}`", each.defect.about, answer["outcome"],
            answer["told"],
        ]  # fmt: skip
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
