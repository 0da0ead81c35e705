"""test whether a scenario may join the catalogue

    python -m harness admit scenario=bf16_clip
    python -m harness admit scenario=bf16_clip --fix    # first writes what a command can write

First its folder must meet the demands of CONTRIBUTING.md. Then it is run: it must give the same
result three times and with another seed, its controls must be clean, and no detector may fire where
nothing is wrong. A scenario whose results differ is reported as flaky; nothing is tried again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from harness.bugs import catalog, result_file
from harness.bugs.api.spec import BUGGY, FIXED, Lane, Outcome, Verdict
from harness.bugs.results import RunResult
from harness.cli import Arguments, bisect, lock, matrix, pages
from harness.cli import _demands as demands
from harness.rank.run_folder import records_of
from harness.releases.releases import ALL
from harness.run import command_line
from harness.run.executor import side_by_side
from harness.run.grade import grade_trial, run_of
from harness.run.run_config import RunConfig
from harness.system.errors import ExitCode, HarnessError, Inconclusive, UserError
from harness.system.files import ROOT
from harness.system.terminal import table, terminal
from harness.system.text import count


def fix(name: str, console: Console) -> None:
    """Supply what a command can supply, in the order of the demands.

    Ends at the first demand that only a person can meet: the commands after it would run a scenario
    that is not finished, or write a page of it. The page is always written, and with it the pages
    of docs/, which show what all bugs have.
    """
    for demand in demands.DEMANDS:
        if demand is demands.page or not demands.met(demand, name)[0]:
            if demand in SUPPLIES:
                console.print(f"{name}: {demand.__name__.replace('_', ' ')}", style="bold")
                SUPPLIES[demand](name)
            if not demands.met(demand, name)[0]:
                return


def _record(name: str) -> None:
    """Run all variants on CPUs, and keep the run if it reproduces the bug."""
    if Lane.CPU in catalog.scenario(name).lanes:
        ((result, folder),) = _runs([_config([f"scenario={name}", "lane=cpu"])], terminal())
        if result.verdict is Verdict.REPRODUCED:
            _call("tests.record", str(folder))


def _search(name: str) -> None:
    """Find the affected ones of all releases. The search may pass over the release of ``buggy``."""
    scenario = catalog.scenario(name)
    words = [f"scenario={name}", "--record"]
    if not result_file.statuses(name):
        bisect.main([*words, f"pins.{scenario.subject}={ALL}"])
    if not demands.is_tested(name, scenario):
        matrix.main([*words, f"pins.{scenario.subject}={scenario.release_of(BUGGY)}"])


def _call(module: str, argument: str) -> None:
    """Run a module as a command. A failure shows in the demand, which stays unmet."""
    subprocess.run([sys.executable, "-m", module, argument], cwd=ROOT, check=False)


SUPPLIES: Mapping[demands.Demand, Callable[[str], None]] = {
    demands.lock_files: lock.write,
    demands.recorded_run: _record,
    demands.statuses: _search,
    demands.mutations: lambda name: _call("tests.mutations", name),
    demands.page: lambda name: pages.write([name]),
}
"""What supplies the thing that a demand lacks."""


REPEATS = 3
ITS_OWN = ("run", "run_json", "pid", "seconds", "ended", "loaded")
"""Facts that differ between any two runs. Forked ranks also load what torch imports for its first
optimizer."""


@dataclass(frozen=True)
class Gate:
    """One condition, and whether it holds."""

    name: str
    passed: bool
    why: str


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="first write what a command can write: locks, a recorded run, affected releases, "
        "mutations, pages",
    )
    options = parser.parse_intermixed_args(arguments)
    config, console = _config(options.overrides), terminal()
    if options.fix:
        fix(config.scenario, console)
    lines = [Gate(*line) for line in demands.checked(config.scenario)]
    unmet = [line for line in lines if not line.passed]
    if unmet:
        _report(console, config.scenario, unmet)
        if not options.fix and {gate.name for gate in unmet} & set(map(demands.text, SUPPLIES)):
            console.print("with --fix, this command writes what it can")
        return ExitCode.NOT_AS_EXPECTED
    # All variants once, then only buggy and fixed; with cold launches, and with another seed.
    narrow = replace(config, variants=(BUGGY, FIXED))
    configs = [config, *[narrow] * (REPEATS - 2)]
    configs.append(replace(narrow, launch=replace(config.launch, warm=False)))
    configs.append(replace(narrow, seed=config.seed + 1))
    *runs, (seed_result, _) = _runs(configs, console)
    repeats = [result for result, _ in runs]
    if repeats[0].verdict is Verdict.UNSUPPORTED:
        console.print(f"{config.scenario}: cannot run on this machine")
        return ExitCode.UNSUPPORTED
    folders = [folder for _, folder in runs]
    conditions = [Gate("its folder meets every demand", True, count(len(lines), "demand"))]
    conditions += [*gates(repeats, seed_result), claimed(folders[0]), recorded_alike(folders)]
    _report(console, config.scenario, conditions)
    passed = all(gate.passed for gate in conditions)
    return ExitCode.AS_EXPECTED if passed else ExitCode.NOT_AS_EXPECTED


def _config(words: Sequence[str]) -> RunConfig:
    for word in words:
        if word.startswith("variant="):
            raise UserError(f"admit runs all variants: remove {word}")
    composed = command_line.compose([*words, "variant=all"])
    missing = {BUGGY, FIXED} - set(composed.variants)
    if missing:
        raise UserError(f"{composed.scenario} has no variant {' and '.join(sorted(missing))}")
    return composed


def _runs(configs: Sequence[RunConfig], console: Console) -> list[tuple[RunResult, Path]]:
    """The result and the folder of each run."""
    ended = dict(side_by_side(configs, console))
    runs = [(ended[index].result, ended[index].folder) for index in range(len(configs))]
    for result, folder in runs:
        if folder is None:
            raise Inconclusive("; ".join(result.reasons))
    return [(result, folder) for result, folder in runs if folder]


def gates(repeats: Sequence[RunResult], seed_result: RunResult) -> Iterator[Gate]:
    """The conditions on the repeated runs, and on the run with another seed."""
    yield _gate_of(BUGGY, Outcome.SYMPTOM, "shows the documented symptom", repeats)
    yield _gate_of(FIXED, Outcome.CLEAN, "is clean, and the trigger occurred", repeats)
    others = [t for t in repeats[0].trials if t.variant not in (BUGGY, FIXED)]
    mismatches = [
        f"{t.variant} {t.outcome}, expected {t.expected}" for t in others if not t.as_expected
    ]
    outcomes = ", ".join(f"{t.variant} {t.outcome}" for t in others)
    yield Gate(
        "the other variants are as expected", not mismatches, "; ".join(mismatches) or outcomes
    )
    verdict, reasons = seed_result.verdict, "; ".join(seed_result.reasons)
    yield Gate(
        "the verdict is the same with another seed",
        verdict is Verdict.REPRODUCED,
        f"{verdict}: {reasons}" if reasons else str(verdict),
    )
    trials = [trial for result in [*repeats, seed_result] for trial in result.trials]
    clean = [trial for trial in trials if trial.expected is Outcome.CLEAN]
    alarms = [f"{t.variant}: {t.finding.message.splitlines()[0]}" for t in clean if t.finding]
    why = "; ".join(alarms) or f"0 false alarms in {len(clean)} trials"
    yield Gate("no detector fires where nothing is wrong", not alarms, why)
    disagreements = {reason for result in [*repeats, seed_result] for reason in result.reasons}
    yield Gate("its variants agree where they must", not disagreements, "; ".join(disagreements))


def claimed(folder: Path) -> Gate:
    """The result of ``exercised`` for the records of buggy, if ``detect`` finds nothing.

    The trigger occurred there, so ``exercised`` must hold, and its text must not mention the
    symptom."""
    run_json = run_of(folder)
    module = catalog.load(run_json["scenario"])
    silent = ModuleType(module.__name__)
    vars(silent).update(vars(module))
    vars(silent)["detect"] = lambda records: None
    result, _ = grade_trial(run_json, folder, BUGGY, silent)
    name = "with detect silenced, buggy is clean: its trigger occurred"
    return Gate(name, result.outcome is Outcome.CLEAN, result.reason)


def recorded_alike(folders: Sequence[Path]) -> Gate:
    """Whether the cold launch, the last run, recorded the same as the forked launches before it.

    Times and the names of processes and runs are ignored. If the forked launches differ among
    themselves, a comparison is not possible, and the gate passes.
    """
    name = "a cold launch records the same as a forked one, bit by bit"
    try:
        forked, *others, cold = map(_facts, folders)
    except HarnessError as error:
        return Gate(name, False, str(error))
    if any(other_forked != forked for other_forked in others):
        return Gate(name, True, "not comparable: two forked launches recorded different facts")
    differ = [pair for pair in zip_longest(forked, cold) if pair[0] != pair[1]]
    if differ:
        ours, theirs = differ[0]
        return Gate(name, False, f"{len(differ)} records differ; forked {ours}, cold {theirs}")
    return Gate(name, True, f"{len(cold)} records")


def _facts(folder: Path) -> list[dict[str, Any]]:
    """The facts of buggy and fixed that must be the same in every run."""
    return [
        {name: value for name, value in record.items() if name not in ITS_OWN}
        for variant in (BUGGY, FIXED)
        for record in records_of(folder, variant)
    ]


def _gate_of(variant: str, expected: Outcome, about: str, repeats: Sequence[RunResult]) -> Gate:
    """Whether a variant had the expected outcome every time; flaky if only sometimes. The steps of
    the symptom are added if they differ between runs."""
    trials = [trial for run in repeats for trial in run.trials if trial.variant == variant]
    outcomes = [trial.outcome for trial in trials]
    name = f"{variant} {about}, {REPEATS} times"
    listed = ", ".join(map(str, outcomes))
    if set(outcomes) != {expected}:
        return Gate(name, False, listed if len(set(outcomes)) == 1 else f"flaky: {listed}")
    steps = [trial.finding.step for trial in trials if trial.finding]
    differing = f" (at steps {', '.join(map(str, steps))})" if len(set(steps)) > 1 else ""
    return Gate(name, True, listed + differing)


def _report(console: Console, scenario: str, conditions: Sequence[Gate]) -> None:
    rows = [["passed" if g.passed else "FAILED", g.name, g.why] for g in conditions]
    console.print()
    console.print(table("", ["", "gate", ""], rows))
    passed = all(gate.passed for gate in conditions)
    console.print(
        f"{scenario}: {'admitted' if passed else 'not admitted'}",
        style="bold green" if passed else "bold red",
    )
