"""Grading: from the records and exits in a run folder to outcomes and a verdict.

Launches nothing: a run can be graded again at any time. An outcome never depends on the name of the
variant: ``detect`` gets only records, and run.json contains what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.numbers import finite
from harness.bugs.api.spec import BUGGY, FIXED, Exercise, Finding, Outcome, Records, Verdict
from harness.bugs.results import Result, RunResult
from harness.rank.exits import FORMAT, Exit
from harness.rank.run_folder import RUN_FILE, check_run
from harness.run.validation import call, validated
from harness.system.errors import HarnessError, Inconclusive
from harness.system.files import read_json


def grade(run_folder: Path) -> RunResult:
    """The result of a run folder.

    Raises Inconclusive if it is not a run folder, has an older format, or is from another
    catalogue.
    """
    return graded(run_folder)[0]


def graded(run_folder: Path) -> tuple[RunResult, dict[str, Records]]:
    """The result of a run folder, and the records of the trials that count, by variant.

    Raises Inconclusive as ``grade`` does.
    """
    run = run_of(run_folder)
    trials = [grade_trial(run, run_folder, variant) for variant in run["trials"]]
    valid = {result.variant: records for result, records in trials if records is not None}
    return of_trials(run["scenario"], [result for result, _ in trials], valid), valid


def of_trials(
    scenario: str, results: Sequence[Result], records: Mapping[str, Records]
) -> RunResult:
    """The result of a run whose trials are graded, with the records of those that count."""
    module = catalog.load(scenario)
    verdict, reasons = judge(results, lambda: _disagreements(module, records))
    return RunResult(scenario, verdict, reasons, tuple(results))


def run_of(run_folder: Path) -> dict[str, Any]:
    """The content of run.json; raises Inconclusive if it is not a run of this catalogue."""
    run = read_json(run_folder / RUN_FILE)
    number = run.get("format") if isinstance(run, dict) else None
    if not isinstance(number, int):
        raise Inconclusive(f"{run_folder / RUN_FILE} is not the record of a run")
    if number < FORMAT:
        raise Inconclusive(f"{run_folder} has an older format")
    if number > FORMAT:
        raise Inconclusive(f"{run_folder} has format {number}, and this version reads {FORMAT}")
    check_run(run)
    return dict(run)


def grade_trial(
    run: Mapping[str, Any], run_folder: Path, variant: str, module: ModuleType | None = None
) -> tuple[Result, Records | None]:
    """The result of one trial, and its records if the trial counts.

    ``module`` replaces the scenario's own module.
    """
    trial, module = run["trials"][variant], module or catalog.load(run["scenario"])
    blank = Result(
        run["scenario"],
        variant,
        trial["pins"],
        Outcome.UNSUPPORTED,
        trial.get("unsupported", ""),
        run["lane"],
        str(run.get("started", ""))[:10],
        run.get("machine", {}),
        Outcome(trial["expect"]) if trial["expect"] else None,
        source=run.get("source", {}),
        command=run.get("command", ""),
        seed=run["seed"],
        run=run["run"],
    )
    if "unsupported" in trial:
        return blank, None
    exits: list[Exit] = []
    try:
        records = validated(run, run_folder / variant, variant, exits)
        outcome, reason, finding = _detected(module, records, trial)
        fired = _insufficient_checks(module, records)
    except HarnessError as error:
        result = replace(
            blank,
            outcome=Outcome.INCONCLUSIVE,
            reason=str(error),
            seconds=sum(e.seconds for e in exits),
            failure=exits[-1].failure if exits else None,
        )
        return result, None
    result = replace(
        blank,
        outcome=outcome,
        reason=reason,
        seconds=sum(e.seconds for e in exits),
        finding=finding,
        insufficient_checks=fired,
        shims=_shim_uses(records),
        environment=_environment(records),
        phases=_phases(records),
    )
    return result, records


def _detected(
    module: ModuleType, records: Records, trial: Mapping[str, Any]
) -> tuple[Outcome, str, Finding | None]:
    """The outcome of a trial whose records are valid, the reason, and the finding."""
    finding = call(module, "detect", records)
    if finding is None:
        exercise = call(module, "exercised", records)
        if not isinstance(exercise, Exercise):
            raise Inconclusive(f"exercised returned {exercise!r}, expected an Exercise")
        return *_without_finding(exercise, trial["triggers"]), None
    if not isinstance(finding, Finding):
        raise Inconclusive(f"detect returned {finding!r}, expected a Finding or None")
    if finding.magnitude is not None and not finite(finding.magnitude):
        raise Inconclusive(f"the finding's magnitude is {finding.magnitude}: {finding.message}")
    if not finding.documented:
        return Outcome.INCONCLUSIVE, f"not the documented symptom: {finding.message}", finding
    return Outcome.SYMPTOM, finding.message, finding


def _without_finding(exercise: Exercise, triggers: bool) -> tuple[Outcome, str]:
    """The outcome of a trial without a finding: it depends on whether the trigger occurred."""
    if triggers and exercise.met:
        return Outcome.CLEAN, f"no symptom, although the trigger occurred: {exercise.text}"
    if triggers:
        why = f"no symptom, but the trigger did not occur: {exercise.text}"
        return Outcome.INCONCLUSIVE, why
    if exercise.met:
        why = f"this control should leave the trigger off, but: {exercise.text}"
        return Outcome.INCONCLUSIVE, why
    return Outcome.CLEAN, f"no symptom; the trigger was off, as intended: {exercise.text}"


def judge(
    results: Sequence[Result], disagreements: Callable[[], list[str]]
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict of a scenario, and why it is not ``reproduced``.

    ``disagreements`` compares the trials; it is called only if every trial has an outcome.
    """
    by_variant = {result.variant: result for result in results}
    for outcome in (Outcome.UNSUPPORTED, Outcome.INCONCLUSIVE):
        reasons = tuple(f"{r.variant}: {r.reason}" for r in results if r.outcome is outcome)
        if reasons:
            return Verdict(outcome.value), reasons
    surprises = [
        f"{r.variant}: {r.outcome}, expected {r.expected}" for r in results if not r.as_expected
    ]
    if not {BUGGY, FIXED} <= set(by_variant):
        return Verdict.UNJUDGED, tuple(surprises)
    try:
        surprises += disagreements()
    except HarnessError as error:
        return Verdict.INCONCLUSIVE, (str(error),)
    pair = (by_variant[BUGGY].outcome, by_variant[FIXED].outcome)
    if pair == (Outcome.SYMPTOM, Outcome.CLEAN) and not surprises:
        return Verdict.REPRODUCED, ()
    return Verdict.NOT_REPRODUCED, tuple(surprises)


def _disagreements(module: ModuleType, trials: Mapping[str, Records]) -> list[str]:
    if not hasattr(module, "agree"):
        return []
    reasons: list[str] = call(module, "agree", trials, kind=list)
    return reasons


def _insufficient_checks(module: ModuleType, records: Records) -> dict[str, bool]:
    if not hasattr(module, "insufficient_checks"):
        return {}
    checks: dict[str, bool] = call(module, "insufficient_checks", records, kind=dict)
    return {name: bool(fired) for name, fired in checks.items()}


def _shim_uses(records: Records) -> dict[str, int]:
    uses: dict[str, int] = {}
    for record in records.of("shims"):
        for name, count in record["uses"].items():
            uses[name] = uses.get(name, 0) + count
    return uses


def _environment(records: Records) -> dict[str, Any]:
    start = next(iter(records.of("start", 0)), {})
    facts = {k: v for k, v in start.items() if k not in ("kind", "rank", "step", "launch", "pid")}
    upstream = next(iter(records.of("upstream", 0)), {})
    return {**facts, "apex": upstream["apex"]} if "apex" in upstream else facts


def _phases(records: Records) -> dict[str, float]:
    """For each phase the seconds of the slowest rank, summed over all launches."""
    slowest: dict[str, float] = {}
    for rank in records.ranks:
        of_rank: dict[str, float] = {}
        for record in records.of("phases", rank):
            for name, seconds in record["seconds"].items():
                of_rank[name] = of_rank.get(name, 0.0) + seconds
        slowest = {name: max(s, slowest.get(name, 0.0)) for name, s in of_rank.items()}
    return slowest
