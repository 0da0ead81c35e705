"""Grading: from the records and exits in a run folder to outcomes and a verdict.

Launches nothing: a run can be graded again at any time. An outcome never depends on the name of the
variant: ``detect`` gets only records, and run.json contains what was expected.
"""

from __future__ import annotations

from collections import Counter
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

    Raises Inconclusive if it is not a run folder, if its format is not the one that this version
    reads, or if it is from another catalogue.
    """
    return grade_with_records(run_folder)[0]


def grade_with_records(run_folder: Path) -> tuple[RunResult, dict[str, Records]]:
    """The result of a run folder, and the records of the trials that count, by variant.

    Raises Inconclusive as ``grade`` does.
    """
    run = run_of(run_folder)
    trials = [grade_trial(run, run_folder, variant) for variant in run["trials"]]
    valid = {result.variant: records for result, records in trials if records is not None}
    return result_of_run(run["scenario"], [result for result, _ in trials], valid), valid


def result_of_run(
    scenario: str, results: Sequence[Result], records: Mapping[str, Records]
) -> RunResult:
    """The result of a run whose trials are graded, with the records of those that count."""
    module = catalog.load(scenario)
    verdict, reasons = judge(results, lambda: _optional(module, "agree", records, list))
    return RunResult(scenario, verdict, reasons, tuple(results))


def run_of(run_folder: Path) -> dict[str, Any]:
    """The content of run.json; raises Inconclusive as ``grade`` does."""
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
    unsupported = Result(
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
        return unsupported, None
    exits: list[Exit] = []  # filled by ``validated``, also if it then raises
    try:
        records = validated(run, run_folder / variant, variant, exits)
        outcome, reason, finding = _detected(module, records, trial)
        checks = _optional(module, "insufficient_checks", records, dict)
    except HarnessError as error:
        result = replace(
            unsupported,
            outcome=Outcome.INCONCLUSIVE,
            reason=str(error),
            seconds=sum(exit_.seconds for exit_ in exits),
            failure=exits[-1].failure if exits else None,
        )
        return result, None
    uses = Counter[str]()
    for record in records.of("shims"):
        uses.update(record["uses"])
    result = replace(
        unsupported,
        outcome=outcome,
        reason=reason,
        seconds=sum(exit_.seconds for exit_ in exits),
        finding=finding,
        insufficient_checks={name: bool(alarm) for name, alarm in checks.items()},
        shims=dict(uses),
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
        reason = f"no symptom, but the trigger did not occur: {exercise.text}"
        return Outcome.INCONCLUSIVE, reason
    if exercise.met:
        reason = f"this control should leave the trigger off, but: {exercise.text}"
        return Outcome.INCONCLUSIVE, reason
    return Outcome.CLEAN, f"no symptom; the trigger was off, as intended: {exercise.text}"


def judge(
    results: Sequence[Result], disagreements: Callable[[], list[str]]
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict of a run, and the reasons for it.

    - ``unsupported`` or ``inconclusive``: a trial has this outcome; the reasons are the trials'.
    - ``unjudged``: ``buggy`` and ``fixed`` are not both there. The reasons name the trials with an
      outcome that was not expected, so there may be none.
    - ``reproduced``: ``buggy`` shows the symptom, ``fixed`` is clean, every other trial has its
      expected outcome, and the trials do not disagree. There are no reasons.
    - ``not reproduced``: otherwise.

    ``disagreements`` returns how trials differ that must be alike. It is called only if ``buggy``
    and ``fixed`` are there and each trial is clean or shows the symptom. If it raises a
    HarnessError, the run is ``inconclusive``.
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
    outcomes = (by_variant[BUGGY].outcome, by_variant[FIXED].outcome)
    if outcomes == (Outcome.SYMPTOM, Outcome.CLEAN) and not surprises:
        return Verdict.REPRODUCED, ()
    return Verdict.NOT_REPRODUCED, tuple(surprises)


def _optional(module: ModuleType, name: str, argument: Any, kind: Callable[[Any], Any]) -> Any:
    """The result of a function that not every scenario has; empty without it."""
    return call(module, name, argument, kind=kind) if hasattr(module, name) else kind(())


def _environment(records: Records) -> dict[str, Any]:
    """The versions of Python, torch and CUDA, the threads and the GPU, as rank 0 recorded them at
    its start; and whether upstream used NVIDIA's apex, which is known only at its end.

    The evidence says it, because with apex other kernels compute.
    """
    start = next(iter(records.of("start", 0)), {})
    facts = {k: v for k, v in start.items() if k not in ("kind", "rank", "step", "launch", "pid")}
    upstream = next(iter(records.of("upstream", 0)), {})
    return {**facts, "apex": upstream["apex"]} if "apex" in upstream else facts


def _phases(records: Records) -> dict[str, float]:
    """For each phase the seconds of its slowest rank, summed over all launches.

    Ranks may have unlike phases: a phase counts for the ranks that have it.
    """
    slowest: dict[str, float] = {}
    for rank in records.ranks:
        rank_seconds: dict[str, float] = {}
        for record in records.of("phases", rank):
            for phase, seconds in record["seconds"].items():
                rank_seconds[phase] = rank_seconds.get(phase, 0.0) + seconds
        for phase, seconds in rank_seconds.items():
            slowest[phase] = max(seconds, slowest.get(phase, 0.0))
    return slowest
