"""The history: all nightlies in one file of JSON lines. The site is made from it.

Before its first nightly it gets the results that come with the harness. Each line is written as
soon as it is known: a nightly that was killed loses no finished result, and the next one continues
it. A later line about the same thing replaces an earlier one, so lines are only appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from harness.bugs import catalog, pins, result_file
from harness.bugs.api.spec import Scenario, Verdict
from harness.bugs.results import Result, RunResult
from harness.publish.history_rows import (
    Change,
    Nightly,
    NightlyKind,
    ReleaseResult,
    ScenarioResult,
    newest_certain,
)
from harness.releases.index import Release
from harness.system import files, lines
from harness.system.errors import Inconclusive, UserError
from harness.system.files import locked, refuse_without_folder
from harness.system.text import one_line

K = TypeVar("K")
T = TypeVar("T")


class History:
    """An open history file. All lists have the oldest first.

    Each query first reads the lines that were appended since the last one, also by another process.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._offset = 0
        self._nightlies: dict[int, Nightly] = {}
        self._releases: dict[tuple[str, str], Release] = {}
        self._results: dict[tuple[int, str, str, str], ReleaseResult] = {}
        self._verdicts: dict[tuple[int, str], ScenarioResult] = {}
        self._changes: dict[int, list[Change]] = {}
        self._confirmations: dict[tuple[int, str, str], None] = {}
        self._read()

    def start(self, kind: NightlyKind, day: str, started: str, facts: Mapping[str, Any]) -> Nightly:
        """A nightly to write to: the unfinished one of this kind, or a new one.

        The days of a history only increase: raises Inconclusive for an earlier day.
        """
        nightlies = self.nightlies()
        previous = next((each for each in reversed(nightlies) if each.kind is kind), None)
        if previous and day < previous.day:
            raise Inconclusive(
                f"{self.file.name} has a nightly of {previous.day}, which is later than {day}: is "
                "this machine's clock right?"
            )
        resume = previous is not None and previous.ended is None
        number = previous.id if previous and resume else len(nightlies) + 1
        nightly = Nightly(number, kind, day, started, None, facts)
        self._append("nightly", [vars(nightly)])
        return nightly

    def finish(self, nightly: Nightly, ended: str) -> None:
        """Note that a nightly has finished."""
        self._append("nightly", [vars(replace(nightly, ended=ended))])

    def add_releases(self, releases: Iterable[Release]) -> None:
        """Add releases, or what has changed of them; those that the index no longer names stay as
        they are."""
        self._read()
        news = [r for r in releases if self._releases.get((r.package, r.version)) != r]
        names = [field.name for field in fields(Release) if field.compare]
        rows = [{name: getattr(release, name) for name in names} for release in news]
        self._append("release", rows)

    def add_results(self, results: Iterable[ReleaseResult]) -> None:
        """Add results of releases: all of them, or none."""
        self._append("result", [vars(r) | {"cell": r.cell.to_json()} for r in results])

    def add_verdict(
        self, nightly: Nightly, result: RunResult, seconds: float, run: Path | None
    ) -> None:
        """Add the verdict of one of our own scenarios."""
        content = {
            "nightly": nightly.id,
            "scenario": result.scenario,
            "verdict": result.verdict,
            "reasons": result.reasons,
            "trials": [trial.to_json() for trial in result.trials],
            "seconds": seconds,
            "run": str(run) if run else None,
        }
        self._append("verdict", [content])

    def add_confirmation(self, nightly: Nightly, scenario: str, pins: str) -> None:
        """Note that a recorded result was run again, with its releases as JSON."""
        self._append("confirmation", [[nightly.id, scenario, pins]])

    def set_changes(self, nightly: Nightly, changes: Iterable[Change]) -> None:
        """Replace the changes of a nightly."""
        self._append("changes", [[nightly.id, [change.to_json() for change in changes]]])

    def nightlies(self) -> list[Nightly]:
        """All nightlies, with the recorded results as one of them."""
        self._read()
        return list(self._nightlies.values())

    def releases(self, package: str | None = None) -> list[Release]:
        """The releases of a package, or of all, by their day."""
        self._read()
        selection = (r for r in self._releases.values() if package in (None, r.package))
        return sorted(selection, key=lambda release: (release.day, release.package))

    def results(
        self, nightly: int | None = None, scenario: str | None = None
    ) -> list[ReleaseResult]:
        """The results of releases, of all or one nightly, of all or one scenario."""
        self._read()
        return _selected(self._results, nightly, scenario)

    def newest_results(self, scenario: str) -> dict[tuple[str, str], ReleaseResult]:
        """By package and version: the newest certain result, otherwise the newest one."""
        results = newest_certain(self.results(scenario=scenario))
        return {key[1:]: result for key, result in results.items()}

    def verdicts(
        self, nightly: int | None = None, scenario: str | None = None
    ) -> list[ScenarioResult]:
        """The results of our own scenarios."""
        self._read()
        return _selected(self._verdicts, nightly, scenario)

    def changes(self, nightly: int | None = None) -> list[tuple[int, Change]]:
        """The changes, each with the number of its nightly."""
        self._read()
        numbers = sorted(number for number in self._changes if nightly in (None, number))
        return [(number, change) for number in numbers for change in self._changes[number]]

    def confirmations(self) -> list[tuple[int, str, str]]:
        """The nightly, the scenario and the releases of each result that was run again."""
        self._read()
        return sorted(self._confirmations, key=lambda confirmation: confirmation[0])

    def _append(self, kind: str, contents: Iterable[Any]) -> None:
        with files.writing(self.file, "--history"):
            lines.append(self.file, [{kind: content} for content in contents])

    def _read(self) -> None:
        """Read the lines that were appended since the last time."""
        try:
            values, self._offset = lines.read_from(self.file, self._offset)
            if not self._offset and self.file.stat().st_size:
                raise ValueError("it has no whole line")  # a writer would remove half a line
            for value in values:
                ((kind, content),) = value.items()
                self._add(kind, content)
        except OSError as error:
            raise Inconclusive(f"cannot read {self.file}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self.file} is damaged ({one_line(str(error))[:200]}) or not a history: restore "
                "a copy of it, or name another file with --history"
            ) from None

    def _add(self, kind: str, content: Any) -> None:
        """Add a line, in place of an earlier one about the same thing."""
        match kind:
            case "nightly":
                nightly = Nightly(**{**content, "kind": NightlyKind(content["kind"])})
                self._nightlies[int(nightly.id)] = nightly
            case "release":
                release = Release(**content)
                _put(self._releases, (release.package, release.version), release)
            case "result":
                result = ReleaseResult(**{**content, "cell": Result.from_json(content["cell"])})
                _put(self._results, (self._require(result.nightly), *result.key), result)
            case "verdict":
                verdict_of_run = RunResult(
                    content["scenario"],
                    Verdict(content["verdict"]),
                    tuple(content["reasons"]),
                    tuple(map(Result.from_json, content["trials"])),
                )
                verdict = ScenarioResult(
                    content["nightly"], verdict_of_run, content["seconds"], content["run"]
                )
                _put(self._verdicts, (self._require(verdict.nightly), verdict.scenario), verdict)
            case "changes":
                number, changes = content
                self._changes[self._require(number)] = [Change(**change) for change in changes]
            case "confirmation":
                number, scenario, releases = content
                self._confirmations[self._require(number), scenario, releases] = None
            case _:
                raise ValueError(f"it has a line of the kind {kind}")

    def _require(self, nightly: int) -> int:
        if nightly not in self._nightlies:
            raise ValueError(f"it has a line of nightly {nightly}, which does not exist")
        return nightly


def _put(rows: dict[K, T], key: K, row: T) -> None:
    """Replace a row; the new one is the last."""
    rows.pop(key, None)
    rows[key] = row


def _selected(rows: Mapping[Any, T], nightly: int | None, scenario: str | None) -> list[T]:
    """The rows of all or one nightly and scenario, by nightly, scenario and package."""
    keys = [k for k in rows if nightly in (None, k[0]) and scenario in (None, k[1])]
    return [rows[key] for key in sorted(keys, key=lambda key: key[:3])]


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


@contextmanager
def reading(file: Path) -> Iterator[History]:
    """Open a history for reading; another command may write to it meanwhile.

    Raises UserError if the file does not exist, is damaged or is another file.
    """
    if not file.is_file():
        raise UserError(f"no history {file}: create one with python -m harness watch")
    yield History(file)


def add_recorded(history: History, timestamp: str) -> None:
    """Add ``results.jsonl`` of the scenarios without any result, as a nightly of its own kind.

    Results of a nightly that did not finish do not count. ``timestamp`` is ISO, in UTC.
    """
    finished = {nightly.id for nightly in history.nightlies() if nightly.ended}
    have = {r.cell.scenario for r in history.results() if r.nightly in finished}
    results = [result for result in recorded_results() if result.cell.scenario not in have]
    if results:
        days = [n.day for n in history.nightlies() if n.kind is NightlyKind.RECORDED]
        day = max([*days, *(result.cell.first_day for result in results)])
        nightly = history.start(NightlyKind.RECORDED, day, timestamp, {})
        history.add_results(
            ReleaseResult(nightly.id, result.package, result.version, result.cell)
            for result in results
        )
        history.finish(nightly, timestamp)


def recorded_results() -> Iterator[ReleaseResult]:
    """Every recorded result of a sound scenario, once for each package that it is about."""
    for scenario in catalog.sound():
        for cell in result_file.statuses(scenario):
            for package in recorded_about(catalog.scenario(scenario), cell.pins):
                yield ReleaseResult(0, package, cell.pins[package], cell)


def recorded_about(scenario: Scenario, recorded: Mapping[str, str]) -> Iterable[str]:
    """The packages that a recorded result is about: all other pins follow from their release."""
    return [
        package
        for package, version in recorded.items()
        if package in scenario.pins and pins.complete(scenario, {package: version}) == recorded
    ]
