"""Records and exits -> outcomes -> verdict. Reads a run folder, launches nothing.

An old run can be graded again at any time. What a trial showed is never looked up by its
variant's name: ``detect`` gets records alone, and run.json says what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import catalog
from harness.errors import HarnessError, Inconclusive
from harness.facts.numbers import finite
from harness.results import RunResult, TrialResult
from harness.spec import BUGGY, FIXED, Exercise, Finding, Outcome, Records, Verdict
from harness.trial import run_schema
from harness.trial.records import FORMAT, RUN_FILE, Exit, read_json
from harness.trial.validation import asked, proven


def grade(run_folder: Path) -> RunResult:
    """The result of a run folder, from what is in it alone.

    Raises Inconclusive where it is none, of an older format, or not of this catalogue.
    """
    return graded(run_folder)[0]


def graded(run_folder: Path) -> tuple[RunResult, dict[str, Records]]:
    """The result of a run folder, and the records of the trials that are proof of anything.

    Raises Inconclusive as ``grade`` does.
    """
    run = run_of(run_folder)
    module = catalog.load(run["scenario"])
    trials = [grade_trial(run, run_folder, variant) for variant in run["trials"]]
    results = [result for result, _ in trials]
    whole = {result.variant: records for result, records in trials if records is not None}
    verdict, reasons = judge(results, lambda: _disagreements(module, whole))
    return RunResult(run["scenario"], verdict, reasons, tuple(results)), whole


def run_of(run_folder: Path) -> dict[str, Any]:
    """The content of run.json, if it is that of a run of this catalogue; else Inconclusive."""
    run = read_json(run_folder / RUN_FILE)
    form = run.get("format") if isinstance(run, dict) else None
    if not isinstance(form, int) or isinstance(form, bool):
        raise Inconclusive(f"{run_folder / RUN_FILE} is not the record of a run")
    if form < FORMAT:
        raise Inconclusive(f"{run_folder} has an older format")
    if form > FORMAT:
        raise Inconclusive(f"{run_folder} has format {form}, and this version reads {FORMAT}")
    run_schema.check(run)
    return dict(run)


def grade_trial(
    run: Mapping[str, Any], run_folder: Path, variant: str, module: ModuleType | None = None
) -> tuple[TrialResult, Records | None]:
    """One trial's result, and its records where they are proof of anything.

    ``module`` is asked instead of the scenario's own, where one is given.
    """
    trial, module = run["trials"][variant], module or catalog.load(run["scenario"])
    expected = Outcome(trial["expect"]) if trial["expect"] else None
    if "unsupported" in trial:
        return TrialResult(variant, Outcome.UNSUPPORTED, expected, trial["unsupported"]), None
    exits: list[Exit] = []
    try:
        records = proven(run, run_folder / variant, variant, exits)
        outcome, reason, finding = _detected(module, records, trial)
        fired = _wrong_detectors(module, records)
    except HarnessError as error:
        lost = TrialResult(
            variant,
            Outcome.INCONCLUSIVE,
            expected,
            str(error),
            seconds=sum(e.seconds for e in exits),
            failure=exits[-1].failure if exits else None,
        )
        return lost, None
    result = TrialResult(
        variant,
        outcome,
        expected,
        reason,
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
    """The outcome of a trial that is known to have run to its end, and on the right code."""
    finding = asked(module, "detect", records)
    if finding is None:
        exercise = asked(module, "exercised", records)
        if not isinstance(exercise, Exercise):
            raise Inconclusive(f"exercised answered {exercise!r}, and no Exercise")
        return *_unfound(exercise, trial["triggers"]), None
    if not isinstance(finding, Finding):
        raise Inconclusive(f"detect answered {finding!r}, and no Finding")
    if finding.magnitude is not None and not finite(finding.magnitude):
        raise Inconclusive(f"the finding's magnitude is {finding.magnitude}: {finding.message}")
    if not finding.documented:
        return Outcome.INCONCLUSIVE, f"not the documented symptom: {finding.message}", finding
    return Outcome.SYMPTOM, finding.message, finding


def _unfound(exercise: Exercise, triggers: bool) -> tuple[Outcome, str]:
    """What a trial in which nothing was found is, by whether its trigger was exercised."""
    if triggers and exercise.met:
        return Outcome.CLEAN, f"nothing found; {exercise.text}"
    if triggers:
        why = f"nothing found, but the trigger was not exercised: {exercise.text}"
        return Outcome.INCONCLUSIVE, why
    if exercise.met:
        why = f"this control was to leave the trigger off, but: {exercise.text}"
        return Outcome.INCONCLUSIVE, why
    return Outcome.CLEAN, f"nothing found; the trigger was off, as is meant here: {exercise.text}"


def judge(
    results: Sequence[TrialResult], disagreements: Callable[[], list[str]]
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict of a scenario, and why it is not ``reproduced``.

    Whether trials disagree is asked once each of them has said something.
    """
    by_variant = {result.variant: result for result in results}
    for lost in (Outcome.UNSUPPORTED, Outcome.INCONCLUSIVE):
        reasons = tuple(f"{r.variant}: {r.reason}" for r in results if r.outcome is lost)
        if reasons:
            return Verdict(lost.value), reasons
    wrong = [
        f"{r.variant}: {r.outcome}, expected {r.expected}" for r in results if not r.as_expected
    ]
    if not {BUGGY, FIXED} <= set(by_variant):
        return Verdict.UNJUDGED, tuple(wrong)
    try:
        wrong += disagreements()
    except HarnessError as error:
        return Verdict.INCONCLUSIVE, (str(error),)
    pair = (by_variant[BUGGY].outcome, by_variant[FIXED].outcome)
    if pair == (Outcome.SYMPTOM, Outcome.CLEAN) and not wrong:
        return Verdict.REPRODUCED, ()
    return Verdict.NOT_REPRODUCED, tuple(wrong)


def _disagreements(module: ModuleType, trials: Mapping[str, Records]) -> list[str]:
    if not hasattr(module, "agree"):
        return []
    found: list[str] = asked(module, "agree", trials, kind=list)
    return found


def _wrong_detectors(module: ModuleType, records: Records) -> dict[str, bool]:
    if not hasattr(module, "insufficient_checks"):
        return {}
    shown: dict[str, bool] = asked(module, "insufficient_checks", records, kind=dict)
    return {name: bool(fired) for name, fired in shown.items()}


def _shim_uses(records: Records) -> dict[str, int]:
    uses: dict[str, int] = {}
    for record in records.of("shims"):
        for name, count in record["uses"].items():
            uses[name] = uses.get(name, 0) + count
    return uses


def _environment(records: Records) -> dict[str, Any]:
    start = next(iter(records.of("start", 0)), {})
    seen = {k: v for k, v in start.items() if k not in ("kind", "rank", "step", "launch", "pid")}
    proof = next(iter(records.of("upstream", 0)), {})
    return {**seen, "apex": proof["apex"]} if "apex" in proof else seen


def _phases(records: Records) -> dict[str, float]:
    """The slowest rank's seconds for each phase, over all launches."""
    slowest: dict[str, float] = {}
    for rank in records.ranks:
        taken: dict[str, float] = {}
        for record in records.of("phases", rank):
            for name, seconds in record["seconds"].items():
                taken[name] = taken.get(name, 0.0) + seconds
        slowest = {name: max(s, slowest.get(name, 0.0)) for name, s in taken.items()}
    return slowest
