"""Records and exits -> outcomes -> verdict. Reads a run folder, launches nothing.

An old run can be graded again at any time. What a trial showed is never looked up by its
variant's name: ``detect`` gets records alone, and run.json says what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import catalog
from harness.spec import (
    BUGGY,
    FIXED,
    Exercise,
    Finding,
    HarnessError,
    Inconclusive,
    Outcome,
    Record,
    Records,
    RunResult,
    TrialResult,
    Verdict,
)
from harness.trial.records import FORMAT, RUN_FILE, Exit, merged, read_json, read_records


def grade(run_folder: Path) -> RunResult:
    """The result of a run folder, from what is in it alone."""
    run = read_json(run_folder / RUN_FILE)
    try:
        form, scenario, trials = run["format"], run["scenario"], run["trials"]
    except (KeyError, TypeError):
        raise Inconclusive(f"{run_folder / RUN_FILE} is not the record of a run") from None
    if form != FORMAT:
        raise Inconclusive(f"{run_folder} has format {form}, and this version reads {FORMAT}")
    module = catalog.load(scenario)
    graded = [grade_trial(module, run_folder / v, trial) for v, trial in trials.items()]
    results = [result for result, _ in graded]
    whole = {result.variant: records for result, records in graded if records is not None}
    verdict, reasons = judge(results, _disagreements(module, whole))
    return RunResult(scenario, verdict, reasons, tuple(results))


def grade_trial(
    module: ModuleType, folder: Path, trial: Mapping[str, Any]
) -> tuple[TrialResult, Records | None]:
    """One trial's result, and its records where they are proof of anything."""
    variant = folder.name
    expected = Outcome(trial["expect"]) if trial["expect"] else None
    if trial.get("unsupported"):
        return TrialResult(variant, Outcome.UNSUPPORTED, expected, trial["unsupported"]), None
    exits: list[Exit] = []
    try:
        acts = {act: _proven(folder / act, trial, exits) for act in trial["acts"]}
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
    records = merged(acts)
    outcome, reason, finding = _detected(module, records, trial)
    result = TrialResult(
        variant,
        outcome,
        expected,
        reason,
        seconds=sum(e.seconds for e in exits),
        finding=finding,
        wrong_detectors=_wrong_detectors(module, records),
        shims=_shim_uses(records),
        environment=_environment(records),
        phases=_phases(records),
    )
    return result, records


def _proven(folder: Path, trial: Mapping[str, Any], exits: list[Exit]) -> Records:
    """The records of one act, if whole and of the right code; its exit is added to ``exits``."""
    exits.append(Exit.read(folder))
    _check_exit(exits[-1])
    records = read_records(folder, trial["ranks"])
    _check_upstream(records, trial)
    return records


def _detected(
    module: ModuleType, records: Records, trial: Mapping[str, Any]
) -> tuple[Outcome, str, Finding | None]:
    """The outcome of a trial that is known to have run to its end, and on the right code."""
    finding: Finding | None = module.detect(records)
    if finding is not None and not finding.documented:
        why = f"not the documented symptom: {finding.message}"
        return Outcome.INCONCLUSIVE, why, finding
    if finding is not None:
        return Outcome.SYMPTOM, finding.message, finding
    outcome, reason = _unfound(module.exercised(records), trial["triggers"])
    return outcome, reason, None


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


def _check_exit(exit_: Exit) -> None:
    if exit_.survivors:
        raise Inconclusive(f"processes {exit_.survivors} would not end")
    if exit_.interrupted:
        raise Inconclusive("interrupted")
    if exit_.timed_out:
        raise Inconclusive(f"ended at its deadline after {exit_.seconds:.0f} s")
    if exit_.code:
        raise Inconclusive(_crash(exit_))


def _crash(exit_: Exit) -> str:
    if exit_.failure is None:
        return f"torchrun left with exit code {exit_.code}"
    return f"rank {exit_.failure['rank']} failed first: {exit_.failure['message']}"


def _check_upstream(records: Records, trial: Mapping[str, Any]) -> None:
    """Raise Inconclusive unless every rank ran the pinned code of the trial's own overlay."""
    site = Path(trial["overlay"]["site"])
    for rank in records.ranks:
        proof = records.one("upstream", rank)
        if proof is None:
            raise Inconclusive(f"rank {rank} did not say which upstream it ran")
        try:
            _check_modules(rank, proof, site, trial["pins"])
            _check_files(rank, proof, site, trial["files"])
        except (KeyError, TypeError, AttributeError):
            raise Inconclusive(f"rank {rank}: its record of upstream is malformed") from None


def _check_modules(rank: int, proof: Record, site: Path, pins: Mapping[str, str]) -> None:
    for name, version in pins.items():
        module = proof["modules"].get(name)
        if module is None or site not in Path(module["file"]).parents:
            where = module["file"] if module else "nowhere"
            raise Inconclusive(f"rank {rank} loaded {name} from {where}, not from its overlay")
        if module["version"] != version:
            raise Inconclusive(f"rank {rank} ran {name} {module['version']}, not {version}")


def _check_files(rank: int, proof: Record, site: Path, files: Mapping[str, str]) -> None:
    for file, expected in files.items():
        loaded = proof["files"].get(file)
        if loaded is None:
            raise Inconclusive(f"rank {rank} never loaded {file}, where the bug is")
        if Path(loaded["path"]) != site / file or loaded["sha256"] != expected:
            raise Inconclusive(f"rank {rank} ran another {file} than the one of its overlay")


def judge(results: list[TrialResult], disagreements: list[str]) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict of a scenario, and why it is not ``reproduced``."""
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
    pair = (by_variant[BUGGY].outcome, by_variant[FIXED].outcome)
    if pair == (Outcome.SYMPTOM, Outcome.CLEAN) and not wrong and not disagreements:
        return Verdict.REPRODUCED, ()
    return Verdict.NOT_REPRODUCED, (*wrong, *disagreements)


def _disagreements(module: ModuleType, trials: Mapping[str, Records]) -> list[str]:
    compare = getattr(module, "agree", None)
    return list(compare(trials)) if compare else []


def _wrong_detectors(module: ModuleType, records: Records) -> dict[str, bool]:
    shown = getattr(module, "wrong_detectors", None)
    return dict(shown(records)) if shown else {}


def _shim_uses(records: Records) -> dict[str, int]:
    uses: dict[str, int] = {}
    for record in records.of("shims"):
        for name, count in record["uses"].items():
            uses[name] = uses.get(name, 0) + count
    return uses


def _environment(records: Records) -> dict[str, Any]:
    start = next(iter(records.of("start", 0)), {})
    seen = {k: v for k, v in start.items() if k not in ("kind", "rank", "step", "act", "pid")}
    proof = next(iter(records.of("upstream", 0)), {})
    return {**seen, "apex": proof["apex"]} if "apex" in proof else seen


def _phases(records: Records) -> dict[str, float]:
    """The slowest rank's seconds for each phase, over all acts."""
    slowest: dict[str, float] = {}
    for rank in records.ranks:
        taken: dict[str, float] = {}
        for record in records.of("phases", rank):
            for name, seconds in record["seconds"].items():
                taken[name] = taken.get(name, 0.0) + seconds
        slowest = {name: max(s, slowest.get(name, 0.0)) for name, s in taken.items()}
    return slowest
