"""Runs scenarios with detectors attached, and without, and scores what the detectors reported.

For each seed the variant with the bug runs, and each variant without it: the fixed release, and the
buggy one with its trigger off. Half of the seeds are drawn anew each time, so that nobody can tune
a detector to them.

A detector that writes traces judges them when all runs are over. A trace is copied to a folder with
a neutral name first, because its own path names the variant.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import BUGGY, Outcome
from harness.bugs.results import Result
from harness.rank.attachment import file_of, kind_of, traces_of
from harness.rank.recorder import HARNESS_KINDS
from harness.rank.run_folder import RUN_FILE, records_of
from harness.rank.watched import alarm_of, several
from harness.run.executor import side_by_side
from harness.run.run_config import LARGEST_SEED, DetectorConfig, RunConfig
from harness.run.score.scores import Score, Watched, score
from harness.run.suite import Done
from harness.system.errors import HarnessError
from harness.system.files import read_json
from harness.system.terminal import terminal
from harness.system.text import short


@dataclass(frozen=True)
class Scoring:
    """What is scored: detectors on scenarios."""

    detectors: Sequence[DetectorConfig]
    configs: Sequence[RunConfig]
    """One for each scenario; how to run it."""
    seeds: Sequence[int]
    first_drawn: int = field(default_factory=lambda: random.randrange(LARGEST_SEED))
    """A seed that nobody knew before; more are counted on from it."""

    def all_seeds(self) -> list[int]:
        """The seeds of every variant: the first half of ``seeds``, then as many drawn ones as are
        left. All variants have the same, so that no seed tells whether the bug is there."""
        half = (len(self.seeds) + 1) // 2
        drawn = (self.first_drawn + n for n in range(len(self.seeds) - half))
        return [*self.seeds[:half], *(n % LARGEST_SEED for n in drawn)]


def watched_variants(scenario: str) -> tuple[str, ...]:
    """The variant with the bug, and every one that is expected to be clean."""
    spec = catalog.scenario(scenario)
    return BUGGY, *(v for v in spec.variants if spec.variant(v).expect is Outcome.CLEAN)


def scored(scoring: Scoring, report: Callable[[Score], None]) -> list[Score]:
    """The scores of all detectors on all scenarios; ``report`` gets each as soon as it exists."""
    plan = [run for config in scoring.configs for run in _runs(config, scoring)]
    runs_by_scenario, scores = dict[str, dict[int, tuple[RunConfig, Done]]](), list[Score]()
    with closing(side_by_side(plan, terminal(io.StringIO()))) as endings:
        for number, ended_run in endings:
            name = plan[number].scenario
            runs = runs_by_scenario.setdefault(name, {})
            runs[number] = plan[number], ended_run
            if len(runs) == sum(other.scenario == name for other in plan):
                in_order = [run for _, run in sorted(runs.items(), key=itemgetter(0))]
                for new_score in _of_scenario(name, in_order, scoring):
                    scores.append(new_score)
                    report(new_score)
    return scores


def _runs(config: RunConfig, scoring: Scoring) -> Iterator[RunConfig]:
    """The runs of one scenario: without detectors, once; and with all detectors for each seed."""
    variants = watched_variants(config.scenario)
    seeds = scoring.all_seeds()
    yield replace(config, variants=variants, seed=seeds[0])
    for seed in seeds:
        yield replace(config, detectors=tuple(scoring.detectors), seed=seed, variants=variants)


def _of_scenario(
    name: str, runs: Sequence[tuple[RunConfig, Done]], scoring: Scoring
) -> Iterator[Score]:
    (_, without), *others = runs
    disturbed = _disturbed(without, others)
    for detector in scoring.detectors:
        trials = [
            trial
            for config, ended_run in others
            for trial in _trials(ended_run, config.seed, detector)
        ]
        if disturbed and len(scoring.detectors) == 1:
            trials = [replace(one, changed=one.changed or disturbed) for one in trials]
        failures = [failure for _, ended_run in others for failure in _failures(ended_run)]
        yield score(name, detector.name, trials, failures)


def _failures(ended_run: Done) -> Iterator[str]:
    """The variants of a run that did not show what is documented, with the reason."""
    for trial in ended_run.result.trials:
        if not trial.as_expected:
            yield f"{trial.variant}: {trial.outcome}: {short(trial.reason, 300)}"
    if not ended_run.result.trials:
        yield "; ".join(ended_run.result.reasons)


def _trials(ended_run: Done, seed: int, detector: DetectorConfig) -> Iterator[Watched]:
    """The trials of a run that showed what is documented, with what a detector reported."""
    if ended_run.folder is None:
        return
    run = read_json(ended_run.folder / RUN_FILE)
    for trial in ended_run.result.trials:
        if trial.as_expected:
            trainings = reports(ended_run.folder, run, trial.variant)
            watched = _watched(trial, seed, detector.name, trainings)
            overlay = run["trials"][trial.variant].get("overlay") or {}
            pairs = (line.partition("==") for line in overlay.get("lock", ()))
            watched = replace(watched, releases={name: version for name, _, version in pairs})
            if hasattr(kind_of(vars(detector)), "judge"):
                traces = traces_of(ended_run.folder / trial.variant, detector.name)
                alarms, error = judged(detector, traces)
                watched = replace(
                    watched, alarms=[*watched.alarms, *alarms], error=watched.error or error
                )
            yield watched


def reports(folder: Path, run: Mapping[str, Any], variant: str) -> list[dict[str, Any]]:
    """What was trained in a trial, and what the detectors reported of it, on every rank and in
    every launch."""
    trial = run["trials"][variant]
    files = [
        file_of(folder / variant, launch, rank)
        for launch in trial["launches"]
        for rank in range(trial["ranks"])
    ]
    read = [json.loads(file.read_text()) for file in files if file.exists()]
    return [training for one in read for training in one["trainings"]]


def _watched(
    trial: Result, seed: int, detector: str, trainings: Iterable[Mapping[str, Any]]
) -> Watched:
    detector_reports = [
        each["detectors"][detector] for each in trainings if detector in each["detectors"]
    ]
    return Watched(
        trial.variant,
        seed,
        trial.outcome is Outcome.SYMPTOM,
        trial.finding.step if trial.finding else None,
        len(detector_reports),
        [alarm for one in detector_reports for alarm in one["alarms"]],
        next((one["error"] for one in detector_reports if one["error"]), ""),
        next((one["changed"] for one in detector_reports if one["changed"]), ""),
        sum(one["calls"] for one in detector_reports),
        sum(one["seconds"] for one in detector_reports),
    )


def _disturbed(without: Done, others: Sequence[tuple[RunConfig, Done]]) -> str:
    """How the records of the training differ from those without detectors; empty if they do not."""
    for _, ended_run in others[:1]:
        if without.folder is None or ended_run.folder is None:
            return ""
        for trial in ended_run.result.trials:
            facts_without, facts_with = (
                _facts(one.folder, trial.variant) for one in (without, ended_run)
            )
            if facts_without is not None and facts_with is not None and facts_without != facts_with:
                return f"{trial.variant}: the records are not those of a run without it"
    return ""


def _facts(folder: Path | None, variant: str) -> list[Any] | None:
    """The records of a trial that are about the training; None if some are missing."""
    if folder is None:
        return None
    try:
        return [
            {key: value for key, value in record.items() if key != "time"}
            for record in records_of(folder, variant)
            if record["kind"] not in HARNESS_KINDS
        ]
    except HarnessError:
        return None


def judged(detector: DetectorConfig, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The alarms of a detector that judges the traces of a run, and the error that it raises."""
    if not folder.exists():
        return [], ""
    with tempfile.TemporaryDirectory(prefix="traces-") as place:
        traces = Path(shutil.copytree(folder, Path(place) / "run"))
        try:
            alarms = kind_of(vars(detector))().judge(traces)
        except Exception:
            return [], traceback.format_exc(limit=-2)
    return [alarm_of(one, 0) for one in several(alarms)], ""
