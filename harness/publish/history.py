"""The history: all nightlies in one file of JSON lines. The site is made from it.

Each line is written as soon as it is known, and belongs to the nightly that started before it: a
nightly that was killed loses no finished result, and the next one continues it. A later line about
the same thing replaces an earlier one, so lines are only appended.

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


WORSE = ("now affected", "no longer certain", "no longer reproduces", "unlike its record")
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
    """None while it runs, or if it was killed."""
    tested: dict[tuple[str, str, str], ReleaseResult] = field(default_factory=dict)
    """The results of releases, by ``ReleaseResult.key``."""
    ours: dict[str, Done] = field(default_factory=dict)
    """The runs of our own scenarios, buggy and fixed, by name."""
    changes: list[Change] = field(default_factory=list)
    confirmed: set[tuple[str, str]] = field(default_factory=set)
    """The recorded results that were run again, by ``confirmations.key``."""

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


class History:
    """The content of a history file. All lists have the oldest first."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.nightlies: list[Nightly] = []
        self.releases: dict[tuple[str, str], Release] = {}
        """By package and version."""
        self._read()

    @property
    def newest(self) -> Nightly:
        """The nightly that lines are added to."""
        return self.nightlies[-1]

    def results(self) -> list[ReleaseResult]:
        """The results of releases of all nightlies."""
        return [result for nightly in self.nightlies for result in nightly.results]

    def start(self, day: str, started: str, facts: Mapping[str, Any]) -> None:
        """Start a nightly, or continue the newest one if it has not ended.

        The days of a history only increase: raises Inconclusive for an earlier day.
        """
        if self.nightlies and day < self.newest.day:
            raise Inconclusive(
                f"{self.file.name} has a nightly of {self.newest.day}, which is later than {day}: "
                "is this machine's clock right?"
            )
        self._append("nightly", [{"day": day, "started": started, "facts": facts}])

    def finish(self, ended: str) -> None:
        """Note that the newest nightly has finished."""
        self._append("ended", [ended])

    def add_releases(self, releases: Iterable[Release]) -> None:
        """Add releases, or what has changed of them; those that the index no longer names stay as
        they are."""
        news = [r for r in releases if self.releases.get((r.package, r.version)) != r]
        names = [each.name for each in fields(Release) if each.compare]
        self._append("release", [{name: getattr(r, name) for name in names} for r in news])

    def add_result(self, result: ReleaseResult) -> None:
        """Add the result of a release."""
        self._append("result", [{"package": result.package, "cell": result.cell.to_json()}])

    def add_verdict(self, done: Done) -> None:
        """Add the run of one of our own scenarios."""
        content = {
            "scenario": done.result.scenario,
            "verdict": done.result.verdict,
            "reasons": done.result.reasons,
            "trials": [trial.to_json() for trial in done.result.trials],
            "seconds": done.seconds,
            "run": str(done.folder) if done.folder else None,
        }
        self._append("verdict", [content])

    def add_confirmation(self, scenario: str, pins: str) -> None:
        """Note that a recorded result was run again, with its releases as JSON."""
        self._append("confirmation", [[scenario, pins]])

    def set_changes(self, changes: Iterable[Change]) -> None:
        """Replace the changes of the newest nightly."""
        self._append("changes", [[vars(change) for change in changes]])

    def _append(self, kind: str, contents: Iterable[Any]) -> None:
        contents = list(contents)
        with files.writing(self.file, "--history"):
            lines.append(self.file, [{kind: content} for content in contents])
        for content in contents:
            self._add(kind, content)

    def _read(self) -> None:
        try:
            values, end = lines.read_from(self.file, 0)
            if not end and self.file.stat().st_size:
                raise ValueError("it has no whole line")  # a writer would remove half a line
            for value in values:
                ((kind, content),) = value.items()
                if kind == "nightly" and "kind" in content:
                    raise UserError(
                        f"{self.file} was written by an older version, which numbered its "
                        "nightlies: name a new file with --history"
                    )
                self._add(kind, content)
        except OSError as error:
            raise Inconclusive(f"cannot read {self.file}: {error.strerror or error}") from None
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self.file} is damaged ({one_line(str(error))[:200]}) or not a history: restore "
                "a copy of it, or name another file with --history"
            ) from None

    def _add(self, kind: str, content: Any) -> None:
        """Add a line, in place of an earlier one about the same thing."""
        if not self.nightlies and kind not in ("nightly", "release"):
            raise ValueError(f"it has a {kind} before its first nightly")
        match kind:
            case "nightly":
                nightly = Nightly(content["day"], content["started"], content["facts"])
                if self.nightlies and not self.newest.ended:
                    killed = self.nightlies.pop()
                    nightly.tested, nightly.ours = killed.tested, killed.ours
                    nightly.changes, nightly.confirmed = killed.changes, killed.confirmed
                self.nightlies.append(nightly)
            case "ended":
                self.newest.ended = content
            case "release":
                release = Release(**content)
                self.releases[release.package, release.version] = release
            case "result":
                result = ReleaseResult(content["package"], Result.from_json(content["cell"]))
                self.newest.tested.pop(result.key, None)  # the new one is the last
                self.newest.tested[result.key] = result
            case "verdict":
                run = RunResult(
                    content["scenario"],
                    Verdict(content["verdict"]),
                    tuple(content["reasons"]),
                    tuple(map(Result.from_json, content["trials"])),
                )
                folder = Path(content["run"]) if content["run"] else None
                self.newest.ours[run.scenario] = Done(run, content["seconds"], folder)
            case "changes":
                self.newest.changes = [Change(**change) for change in content]
            case "confirmation":
                scenario, releases = content
                self.newest.confirmed.add((scenario, releases))
            case _:
                raise ValueError(f"it has a line of the kind {kind}")


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
