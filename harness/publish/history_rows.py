"""What a history contains: nightlies, results of releases and of scenarios, and changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.bugs.pins import describe
from harness.bugs.results import Result, RunResult
from harness.system.text import StrEnum


class NightlyKind(StrEnum):
    """What a nightly was."""

    RECORDED = "recorded"
    """Not a nightly: the results that come with the harness, ``results.jsonl``."""
    NIGHTLY = "night"


@dataclass(frozen=True)
class Nightly:
    """One run of ``watch``, and where it ran."""

    id: int
    kind: NightlyKind
    day: str
    """The day (ISO), in UTC."""
    started: str
    """Time of its start, ISO, in UTC."""
    ended: str | None
    """None while it runs, or if it was killed."""
    facts: Mapping[str, Any]
    """The machine, the harness's commit, and whether there was a network."""


@dataclass(frozen=True)
class ReleaseResult:
    """The cell of one release in one nightly."""

    nightly: int
    package: str
    version: str
    cell: Result

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
    def with_others(self) -> str:
        """The other pins, to append to a text."""
        return f", with {self.others}" if self.others else ""

    @property
    def reason(self) -> str:
        """The first line of the cell's reason."""
        return (self.cell.reason.splitlines() or [""])[0]

    @property
    def why(self) -> str:
        """The reason, and the other pins."""
        return f"{self.reason}{self.with_others}"


@dataclass(frozen=True)
class ScenarioResult:
    """The verdict of one of our own scenarios, run as buggy and fixed, in one nightly."""

    nightly: int
    result: RunResult
    seconds: float
    run: str | None
    """The run folder, if there is one."""

    @property
    def scenario(self) -> str:
        return self.result.scenario

    @property
    def verdict(self) -> str:
        return str(self.result.verdict)

    @property
    def reasons(self) -> str:
        """The first line of each reason."""
        return "; ".join(reason.splitlines()[0] for reason in self.result.reasons if reason)


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

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


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
