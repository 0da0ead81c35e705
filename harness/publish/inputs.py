"""The inputs of the site: the statuses of releases, the nightlies, the runs with their evidence.

The statuses come from the newest certain results of a history; without one, from ``results.jsonl``.
Pictures show the recorded run of a scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from harness.bugs import catalog, result_file
from harness.bugs.api.pictures import Picture
from harness.bugs.api.spec import BUGGY, FIXED, Records, Verdict
from harness.bugs.lookup import Lookup, infer
from harness.bugs.results import Result
from harness.publish import history
from harness.publish.history import Nightly, ReleaseResult
from harness.rank import run_folder
from harness.releases.index import Release
from harness.run import verdict_text
from harness.run.grade import grade_with_records, judge
from harness.system.errors import HarnessError
from harness.system.text import complaint

Warn = Callable[[str], None]
"""Prints one line about an input that cannot be used."""


@dataclass(frozen=True)
class Evidence:
    """A run that pages show, on a CPU or on GPUs."""

    name: str
    verdict: Verdict
    trials: Sequence[Result]
    pictures: Sequence[Picture] = ()

    @property
    def trial(self) -> Result:
        """Its first trial; all have the same machine, commit and command."""
        return self.trials[0]

    @property
    def gpus(self) -> str:
        """The kinds of GPUs of the machine; CPU if it has none."""
        return ", ".join(dict.fromkeys(self.trial.machine["gpus"])) or "CPU"

    @property
    def where(self) -> str:
        """The GPUs, or the CPU."""
        on_gpus = self.trial.lane == "gpu"
        return f"{len(self.trial.machine['gpus'])} {self.gpus}" if on_gpus else "CPU"

    @property
    def releases(self) -> str:
        """The releases that it ran on: ``accelerate 0.29.3 (buggy) / 0.30.0 (fixed)``."""
        return verdict_text.releases({trial.variant: trial.pins for trial in self.trials})

    @property
    def facts(self) -> dict[str, str]:
        """The command, the machine, the versions, the commit and the shims, by name."""
        trial, machine = self.trial, self.trial.machine
        shims = trial.shims or {}
        # without those that name a folder of its machine
        words = [w for w in trial.command.split() if "=/" not in w and not w.startswith("runs=")]
        return {
            "command": " ".join(words),
            "lane": f"{trial.lane}, seed {trial.seed}",
            "machine": f"{machine['cpus']} CPU cores, Python {machine['python']}, "
            f"torch {machine['torch']}",
            "harness": f"commit {trial.source.get('commit') or 'unknown'}",
            "shims used": ", ".join(f"{name} {n} times" for name, n in shims.items()) or "none",
        }

    @property
    def insufficient_checks(self) -> Mapping[str, bool]:
        """The insufficient checks, and whether each fired in the buggy variant."""
        checks = (each.insufficient_checks for each in self.trials if each.variant == BUGGY)
        return next(filter(None, checks), {})


def _complete(folder: Path, warn: Warn) -> Evidence | None:
    """A run with records of buggy and fixed; otherwise None, with a warning if it cannot be graded
    or is inconclusive."""
    try:
        result, records = grade_with_records(folder)
    except (HarnessError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, HarnessError) else complaint(error)
        warn(f"{folder} is not used: {why}")
        return None
    if result.verdict is Verdict.INCONCLUSIVE:
        warn(f"{folder} is not used: {result.reasons[0].splitlines()[0]}")
        return None
    if not {BUGGY, FIXED} <= set(records):
        return None  # unsupported here: nothing to show, and nothing wrong
    drawn = tuple(_pictures(result.scenario, records, warn))
    return Evidence(folder.name, result.verdict, result.trials, drawn)


def _pictures(name: str, records: Mapping[str, Records], warn: Warn) -> Iterator[Picture]:
    draw = getattr(catalog.load(name), "picture", None)
    if draw is None:
        return
    try:
        yield from list(draw(records))
    except Exception as error:  # a scenario's own code: its failure must not affect others
        warn(f"no picture of {name}: {complaint(error)}")


def kept_evidence(scenario: str) -> list[Evidence]:
    """The evidence of a scenario that comes with the harness, newest first."""
    return [
        Evidence(label, judge(trials, list)[0], trials)
        for label, trials in result_file.kept_runs(scenario).items()
    ]


@dataclass(frozen=True)
class Statuses:
    """All results of releases, and the days of releases."""

    results: tuple[ReleaseResult, ...]
    releases: tuple[Release, ...] = ()
    """Every release in the history; empty without a history."""
    _by: dict[tuple[str, str], dict[str, ReleaseResult]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for entry in sorted(self.results, key=lambda result: Version(result.version)):
            self._by.setdefault((entry.cell.scenario, entry.package), {})[entry.version] = entry

    @cached_property
    def days(self) -> Mapping[tuple[str, str], str]:
        """The day (ISO) of releases, by package and version, if known."""
        return {(release.package, release.version): release.day for release in self.releases}

    def packages(self, scenario: str | None = None) -> list[str]:
        """The packages with tested releases, of one scenario or of all; sorted."""
        return sorted({package for name, package in self._by if scenario in (None, name)})

    def scenarios(self, package: str) -> list[str]:
        """The scenarios with tested releases of a package; sorted."""
        return sorted({name for name, of in self._by if of == package})

    def of(self, scenario: str, package: str) -> Mapping[str, ReleaseResult]:
        """The results of a scenario by version, lowest first."""
        return self._by.get((scenario, package), {})

    def versions(self, package: str) -> list[str]:
        """Every tested release of a package, lowest first."""
        by_scenario = [results for (_, of), results in self._by.items() if of == package]
        return sorted({version for results in by_scenario for version in results}, key=Version)

    def status_of(self, scenario: str, package: str, version: str) -> Lookup:
        """The status of a release as tested, otherwise from its neighbours, see ``infer``."""
        results = self.of(scenario, package)
        if version in results:
            result = results[version]
            others = f", with {result.others}" if result.others else ""
            how = f"tested on {result.cell.first_day}{others}"
            why = "" if result.cell.status.certain else f": {result.reason}"
            return Lookup(result.cell.status, f"{how}{why}", tested=True)
        return infer(((each, result.cell.status) for each, result in results.items()), version)

    def others(self, scenario: str, package: str) -> str:
        """The releases of the bug's own package that another package was tested with, if they were
        always the same: ``with transformers 4.36.2``."""
        others = {result.others for result in self.of(scenario, package).values()}
        is_subject = catalog.subject(scenario) == package
        return f"with {others.pop()}" if not is_subject and len(others) == 1 else ""

    def newest_certain(self, scenario: str, package: str) -> ReleaseResult | None:
        """The result of a package's highest release with a certain status; None without one."""
        certain = [each for each in self.of(scenario, package).values() if each.cell.status.certain]
        return certain[-1] if certain else None


@dataclass(frozen=True)
class SiteInputs:
    """The content of the pages."""

    statuses: Statuses
    nightlies: Sequence[Nightly]
    """Oldest first."""
    runs: dict[str, Evidence]
    """The recorded run of each scenario that has one, by its name."""


def collect(file: Path | None, warn: Warn) -> SiteInputs:
    """Read all inputs, with the history in a file; ``warn`` gets one line for each that cannot be
    used. Raises the errors of ``history.reading``."""
    past = history.reading(file) if file else None
    results = [*history.recorded_results(), *(past.results() if past else ())]
    newest = history.newest_certain(r for r in results if r.cell.scenario in catalog.sound())
    statuses = Statuses(tuple(newest.values()), tuple(past.releases.values() if past else ()))
    for name, why in catalog.broken().items():
        warn(f"{name} is not shown: {why}")
    runs = {}
    for name in catalog.sound():
        with run_folder.recorded(name) as folder:
            if folder and (evidence := _complete(folder, warn)):
                runs[name] = evidence
    return SiteInputs(statuses, past.nightlies if past else [], runs)
