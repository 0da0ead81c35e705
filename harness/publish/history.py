"""The history: all nightlies in one file of JSON lines, a line for each. The site is made from it.

A nightly is written when it has ended. One that was killed leaves no line: the next one tests the
same releases, and the cache has the cells that were found before.

The results that come with the harness are not in it: they are older than its nightlies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.bugs import catalog, pins, result_file
from harness.bugs.api.spec import Scenario, Verdict
from harness.bugs.pins import describe
from harness.bugs.results import Result, RunResult
from harness.releases.index import Release
from harness.run.suite import Done
from harness.system import files, lines
from harness.system.errors import Inconclusive, UserError
from harness.system.files import locked, refuse_without_folder
from harness.system.text import one_line


@dataclass(frozen=True)
class ReleaseResult:
    """The cell of one release of a package."""

    package: str
    cell: Result

    @property
    def version(self) -> str:
        return self.cell.pins[self.package]

    @property
    def key(self) -> tuple[str, str, str]:
        """The scenario, the package, the version."""
        return self.cell.scenario, self.package, self.version

    @property
    def others(self) -> str:
        """The other pins of the run, in words; empty if there are none."""
        others = {n: version for n, version in self.cell.pins.items() if n != self.package}
        return describe(others) if others else ""

    @property
    def reason(self) -> str:
        """The first line of the cell's reason."""
        return (self.cell.reason.splitlines() or [""])[0]


WORSE = ("now affected", "no longer certain", "no longer reproduces")
"""The changes that end a nightly with exit code 1."""


@dataclass(frozen=True)
class Change:
    """A status or a verdict that differs from an earlier one."""

    kind: str
    scenario: str
    package: str | None
    """None for a change of our own scenario."""
    version: str | None
    before: str | None
    after: str
    message: str

    @property
    def is_worse(self) -> bool:
        return self.kind in WORSE


@dataclass
class Nightly:
    """One run of ``watch``: where it ran, and what it gave."""

    day: str
    """The day (ISO), in UTC."""
    started: str
    """Time of its start, ISO, in UTC."""
    facts: Mapping[str, Any]
    """The machine, the harness's commit, and whether there was a network."""
    ended: str | None = None
    """None while it runs."""
    releases: list[Release] = field(default_factory=list)
    """Those that the nightly before did not know, or knew otherwise."""
    tested: dict[tuple[str, str, str], ReleaseResult] = field(default_factory=dict)
    """The results of releases, by ``ReleaseResult.key``."""
    ours: dict[str, Done] = field(default_factory=dict)
    """The runs of our own scenarios, buggy and fixed, by name."""
    changes: list[Change] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its day and time: a day may have several."""
        return f"{self.day} {self.started[11:16]}"

    @property
    def results(self) -> list[ReleaseResult]:
        """The results of releases, by scenario and package, each package in the order of tests."""
        return sorted(self.tested.values(), key=lambda result: result.key[:2])

    @property
    def seconds(self) -> float:
        """The sum of the wall seconds of its runs."""
        fresh = [each.cell.seconds for each in self.tested.values() if not each.cell.stored]
        return sum(fresh) + sum(done.seconds for done in self.ours.values())

    def add_result(self, result: ReleaseResult) -> None:
        self.tested[result.key] = result

    def to_json(self) -> dict[str, Any]:
        names = [each.name for each in fields(Release) if each.compare]
        return {
            "day": self.day,
            "started": self.started,
            "facts": self.facts,
            "ended": self.ended,
            "releases": [{name: getattr(r, name) for name in names} for r in self.releases],
            "tested": [[r.package, r.cell.to_json()] for r in self.tested.values()],
            "ours": [
                {
                    "scenario": done.result.scenario,
                    "verdict": done.result.verdict,
                    "reasons": done.result.reasons,
                    "trials": [trial.to_json() for trial in done.result.trials],
                    "seconds": done.seconds,
                    "run": str(done.folder) if done.folder else None,
                }
                for done in self.ours.values()
            ],
            "changes": [vars(change) for change in self.changes],
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Nightly:
        """The nightly of a line; raises ValueError, LookupError or TypeError if it is none."""
        nightly = Nightly(*(content[name] for name in ("day", "started", "facts", "ended")))
        nightly.releases = [Release(**release) for release in content["releases"]]
        for package, cell in content["tested"]:
            nightly.add_result(ReleaseResult(package, Result.from_json(cell)))
        for run in content["ours"]:
            trials = tuple(map(Result.from_json, run["trials"]))
            verdict, reasons = Verdict(run["verdict"]), tuple(run["reasons"])
            result = RunResult(run["scenario"], verdict, reasons, trials)
            folder = Path(run["run"]) if run["run"] else None
            nightly.ours[result.scenario] = Done(result, run["seconds"], folder)
        nightly.changes = [Change(**change) for change in content["changes"]]
        return nightly


class History:
    """The content of a history file. All lists have the oldest first."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.nightlies: list[Nightly] = []
        self.releases: dict[tuple[str, str], Release] = {}
        """By package and version."""
        self._read()

    def results(self) -> list[ReleaseResult]:
        """The results of releases of all nightlies."""
        return [result for nightly in self.nightlies for result in nightly.results]

    def news(self, releases: Iterable[Release]) -> list[Release]:
        """The releases that are new or have changed; from now on they are known. Those that the
        index no longer names stay as they are."""
        news = [r for r in releases if self.releases.get((r.package, r.version)) != r]
        self.releases |= {(release.package, release.version): release for release in news}
        return news

    def append(self, nightly: Nightly) -> None:
        """Write a nightly that has ended."""
        with files.writing(self.file, "--history"):
            lines.append(self.file, [nightly.to_json()])
        self.nightlies.append(nightly)

    def _read(self) -> None:
        try:
            values, end = lines.read_from(self.file, 0)
            if not end and self.file.stat().st_size:
                raise ValueError("it has no whole line")  # a writer would remove half a line
            self.nightlies = list(map(Nightly.from_json, values))
        except OSError as error:
            raise Inconclusive(f"cannot read {self.file}: {error.strerror or error}") from None
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self.file} is damaged ({one_line(str(error))[:200]}) or not a history: restore "
                "a copy of it, or name another file with --history"
            ) from None
        for nightly in self.nightlies:
            self.news(nightly.releases)


@contextmanager
def writing(file: Path) -> Iterator[History]:
    """Open a history for writing, and create it if there is none.

    Raises Inconclusive if another command writes to it, and the errors of ``reading``.
    """
    refuse_without_folder(file)
    if file.is_file():
        History(file)  # a damaged one is refused before a lock lies beside it
    with ExitStack() as stack:
        with files.writing(file, "--history"):
            name = file.with_name(f".{file.name}.lock")
            if not stack.enter_context(locked(name, wait=False)):
                raise Inconclusive(
                    f"another command is writing to {file}: wait until it has finished"
                )
            file.touch()
        yield History(file)


def reading(file: Path) -> History:
    """The content of a history; another command may write to it meanwhile.

    Raises UserError if the file does not exist, is damaged or is another file.
    """
    if not file.is_file():
        raise UserError(f"no history {file}: create one with python -m harness watch")
    return History(file)


def recorded_results() -> Iterator[ReleaseResult]:
    """Every recorded result of a sound scenario, once for each package that it is about."""
    for scenario in catalog.sound():
        for cell in result_file.statuses(scenario):
            for package in recorded_about(catalog.scenario(scenario), cell.pins):
                yield ReleaseResult(package, cell)


def recorded_about(scenario: Scenario, recorded: Mapping[str, str]) -> Iterable[str]:
    """The packages that a recorded result is about: all other pins follow from their release."""
    return [
        package
        for package, version in recorded.items()
        if package in scenario.pins and pins.complete(scenario, {package: version}) == recorded
    ]


def newest_certain(results: Iterable[ReleaseResult]) -> dict[tuple[str, str, str], ReleaseResult]:
    """By scenario, package and version: the newest certain result, otherwise the newest one.

    ``results`` come oldest first.
    """
    by_key: dict[tuple[str, str, str], ReleaseResult] = {}
    for result in results:
        before = by_key.get(result.key)
        if not before or result.cell.status.certain or not before.cell.status.certain:
            by_key[result.key] = result
    return by_key


def why(result: RunResult) -> str:
    """The first line of each reason of a verdict."""
    return "; ".join(reason.splitlines()[0] for reason in result.reasons if reason)
