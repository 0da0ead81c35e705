"""test whether a scenario may join the catalogue

    python -m harness admit scenario=bf16_clip

First its folder must meet the demands of CONTRIBUTING.md. Then it is run: it must give the same
result three times and with another seed, its controls must be clean, and no detector may fire where
nothing is wrong. A scenario whose results differ is reported as flaky; nothing is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from harness import catalog, config
from harness.commands import Arguments
from harness.commands._demands import checked
from harness.errors import ExitCode, HarnessError, UserError
from harness.report import table, terminal
from harness.results import RunResult, TrialResult
from harness.run_config import RunConfig
from harness.spec import BUGGY, FIXED, Outcome, Verdict
from harness.trial.grade import grade_trial, run_of
from harness.trial.records import read_records
from harness.trial.run import run
from harness.trial.server_pool import Pool

REPEATS = 3
ITS_OWN = ("run", "run_json", "pid", "seconds", "ended", "loaded")
"""What no two runs have in common; and a forked rank has loaded what torch imports with its first
optimizer, though it may make none."""


@dataclass(frozen=True)
class Gate:
    """One condition, and whether it holds."""

    name: str
    passed: bool
    why: str


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    return admit(parser.parse_intermixed_args(arguments).overrides)


def admit(words: Sequence[str]) -> int:
    """Run a scenario often enough to judge it and print each gate; 0 if it may come in."""
    first, console = _config(words), terminal()
    unmet = [Gate(what, met, why) for what, met, why in checked(first.scenario) if not met]
    if unmet:
        _tell(console, first.scenario, unmet)
        return ExitCode.NOT_AS_EXPECTED
    with Pool() as pool:
        runs = [run(each, console, pool=pool) for each in _repeats(first)]
        other = run(_narrow(replace(first, seed=first.seed + 1)), console, pool=pool)[0]
    repeats = [result for result, _ in runs]
    if repeats[0].verdict is Verdict.UNSUPPORTED:
        console.print(f"{first.scenario}: cannot be judged on this machine")
        return ExitCode.UNSUPPORTED
    folders = [folder for _, folder in runs]
    found = [*gates(repeats, other), claimed(folders[0]), recorded_alike(folders)]
    _tell(console, first.scenario, found)
    passed = all(gate.passed for gate in found)
    return ExitCode.AS_EXPECTED if passed else ExitCode.NOT_AS_EXPECTED


def _config(words: Sequence[str]) -> RunConfig:
    for word in words:
        if word.startswith("variant="):
            raise UserError(f"admit runs all variants: leave {word} out")
    composed = config.compose([*words, "variant=all"])
    missing = {BUGGY, FIXED} - set(composed.variants)
    if missing:
        raise UserError(f"{composed.scenario} has no variant {' and '.join(sorted(missing))}")
    return composed


def _repeats(first: RunConfig) -> Iterator[RunConfig]:
    """All variants once, then buggy and fixed alone: the last time by a launch of their own."""
    yield first
    for _ in range(REPEATS - 2):
        yield _narrow(first)
    yield replace(_narrow(first), launch=replace(first.launch, warm=False))


def _narrow(asked: RunConfig) -> RunConfig:
    return replace(asked, variants=(BUGGY, FIXED))


def gates(repeats: Sequence[RunResult], other: RunResult) -> Iterator[Gate]:
    """Each condition, of the runs with one seed, the first with all variants, and of another's."""
    yield _same(BUGGY, Outcome.SYMPTOM, "shows the documented symptom", repeats)
    yield _same(FIXED, Outcome.CLEAN, "is clean, the trigger exercised", repeats)
    others = [t for t in repeats[0].trials if t.variant not in (BUGGY, FIXED)]
    wrong = [f"{t.variant} {t.outcome}, expected {t.expected}" for t in others if not t.as_expected]
    all_told = ", ".join(f"{t.variant} {t.outcome}" for t in others)
    yield Gate("the other variants are as expected", not wrong, "; ".join(wrong) or all_told)
    yield Gate("the verdict is the same with another seed", *_verdict(other))
    yield _quiet([*repeats, other])
    disagreements = {reason for result in [*repeats, other] for reason in result.reasons}
    yield Gate("its variants agree where they must", not disagreements, "; ".join(disagreements))


def claimed(folder: Path) -> Gate:
    """What ``exercised`` says of buggy's own records, with ``detect`` silenced.

    The trigger was exercised there, so it must say so; and a reader must not find in it that
    nothing is wrong.
    """
    told = run_of(folder)
    module = catalog.load(told["scenario"])
    silent = ModuleType(module.__name__)
    vars(silent).update(vars(module))
    vars(silent)["detect"] = lambda records: None
    result, _ = grade_trial(told, folder, BUGGY, silent)
    name = "with detect silenced, buggy would be clean: its trigger was exercised"
    return Gate(name, result.outcome is Outcome.CLEAN, result.reason)


def recorded_alike(folders: Sequence[Path]) -> Gate:
    """Whether a cold launch, the last run, has recorded what the forked ones before it have.

    But for times, and the names of processes and runs. Where the forked ones do not agree among
    themselves, a scenario is not the same twice, and a cold launch cannot be held against it.
    """
    name = "a cold launch records the same as a forked one, bit by bit"
    try:
        first, *others, cold = map(_facts, folders)
    except HarnessError as error:
        return Gate(name, False, str(error))
    if any(other != first for other in others):
        return Gate(name, True, "cannot be said: it does not record the same twice")
    differ = [pair for pair in zip_longest(first, cold) if pair[0] != pair[1]]
    if differ:
        ours, theirs = differ[0]
        return Gate(name, False, f"{len(differ)} records differ; forked {ours}, cold {theirs}")
    return Gate(name, True, f"{len(cold)} records")


def _facts(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of buggy and fixed have recorded that must be the same in every run."""
    told = run_of(folder)
    found = []
    for variant in (BUGGY, FIXED):
        trial = told["trials"][variant]
        for launch in trial["launches"]:
            records = read_records(folder / variant / launch, trial["ranks"])
            written = (record for rank in records.ranks for record in records.by_rank[rank])
            found += [{k: v for k, v in record.items() if k not in ITS_OWN} for record in written]
    return found


def _same(variant: str, expected: Outcome, about: str, repeats: Sequence[RunResult]) -> Gate:
    """Whether a variant came out as expected every time; flaky where it did not always."""
    outcomes = [trial.outcome for trial in _trials(repeats, variant)]
    name = f"{variant} {about}, {REPEATS} times"
    told = ", ".join(map(str, outcomes))
    if set(outcomes) == {expected}:
        return Gate(name, True, told + _steps(repeats, variant))
    return Gate(name, False, told if len(set(outcomes)) == 1 else f"flaky: {told}")


def _steps(repeats: Sequence[RunResult], variant: str) -> str:
    """Where repeats saw the symptom at different steps: no fault, but worth knowing."""
    seen = [t.finding.step for t in _trials(repeats, variant) if t.finding]
    return f" (at steps {', '.join(map(str, seen))})" if len(set(seen)) > 1 else ""


def _trials(results: Sequence[RunResult], variant: str) -> list[TrialResult]:
    return [trial for result in results for trial in result.trials if trial.variant == variant]


def _verdict(result: RunResult) -> tuple[bool, str]:
    reasons = "; ".join(result.reasons)
    return (
        result.verdict is Verdict.REPRODUCED,
        f"{result.verdict}{': ' if reasons else ''}{reasons}",
    )


def _quiet(results: Sequence[RunResult]) -> Gate:
    clean = [t for r in results for t in r.trials if t.expected is Outcome.CLEAN]
    alarms = [f"{t.variant}: {t.finding.message.splitlines()[0]}" for t in clean if t.finding]
    why = "; ".join(alarms) or f"0 false alarms in {len(clean)} trials"
    return Gate("every detector is quiet where nothing is wrong", not alarms, why)


def _tell(console: Console, scenario: str, found: Sequence[Gate]) -> None:
    rows = [["passed" if g.passed else "FAILED", g.name, g.why] for g in found]
    console.print()
    console.print(table("", ["", "gate", ""], rows))
    passed = all(gate.passed for gate in found)
    console.print(
        f"{scenario}: {'admitted' if passed else 'not admitted'}",
        style="bold green" if passed else "bold red",
    )
