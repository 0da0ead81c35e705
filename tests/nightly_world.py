"""Fake nightlies: fake index, releases and runs, so that a nightly launches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from harness.bugs.api.spec import RELEASED, Verdict
from harness.bugs.results import Result, RunResult, Status
from harness.publish import steps
from harness.publish.history import ReleaseResult
from harness.releases import index
from harness.releases.index import Release
from harness.run import cells, suite
from harness.run.run_config import RunConfig
from harness.run.suite import Done
from harness.system.errors import Fault, HarnessError
from tests.made_up import cell_of

SCENARIO = "clip_max_for_min"
PACKAGE = "deepspeed"
YES, NO, UNCLEAR = Status.AFFECTED, Status.NOT_AFFECTED, Status.INCONCLUSIVE


def cell(version: str, status: Status, scenario: str = SCENARIO, package: str = PACKAGE) -> Result:
    reason = f"because of {version}\nand"
    day = "2024-03-01"
    return cell_of(scenario, {package: version}, status, reason, day=day, seconds=1.5)


def result(
    version: str, status: Status, scenario: str = SCENARIO, package: str = PACKAGE
) -> ReleaseResult:
    return ReleaseResult(package, cell(version, status, scenario, package))


def own(verdict: Verdict, scenario: str = SCENARIO) -> Done:
    return Done(RunResult(scenario, verdict, ("buggy was clean",), ()), 2.0, None)


def release(version: str, day: str, yanked: bool = False, package: str = PACKAGE) -> Release:
    return Release(package, version, day, yanked)


class World:
    """Replaces the index, the releases and our own runs; lists which were tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.day = "2024-03-04"
        self.releases = [release("0.13.0", "2024-01-10"), release("0.13.1", "2024-01-23")]
        self.statuses: dict[str, Status | HarnessError] = {}
        """The statuses of releases; others are not affected."""
        self.fault: Fault | None = None
        self.verdict = Verdict.REPRODUCED
        self.tested: list[RunConfig] = []
        self.ran: list[str] = []
        self.killed_after: int | None = None
        """How many releases are tested before Ctrl-C."""

    @property
    def versions(self) -> list[str]:
        """The tested releases, in their order."""
        return [config.pins[PACKAGE] for config in self.tested]

    def index(self, packages: Iterable[str]) -> Iterator[tuple[str, list[Release] | Fault]]:
        for package in packages:
            yield package, self.fault or [r for r in self.releases if r.package == package]

    def find(self, config: RunConfig, *_: object, **__: object) -> Result | HarnessError:
        if self.killed_after is not None and len(self.tested) >= self.killed_after:
            raise KeyboardInterrupt
        assert config.variants == (RELEASED,)
        self.tested.append(config)
        version = config.pins[PACKAGE]
        status = self.statuses.get(version, NO)
        if isinstance(status, HarnessError):
            return status
        return cell(version, status, config.scenario)

    def run(self, config: RunConfig, *_: object) -> tuple[RunResult, Path]:
        self.ran.append(config.scenario)
        why = () if self.verdict is Verdict.REPRODUCED else ("buggy was clean",)
        return RunResult(config.scenario, self.verdict, why, ()), self.folder / config.scenario


@pytest.fixture
def world(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    fakes = World(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(index, "releases_of", fakes.index)
    monkeypatch.setattr(steps, "today", lambda: fakes.day)
    monkeypatch.setattr("harness.cli.watch.today", lambda: fakes.day)
    monkeypatch.setattr(cells, "find", fakes.find)
    monkeypatch.setattr(cells, "make_overlay", lambda *_, **__: False)
    monkeypatch.setattr(suite, "run", fakes.run)
    monkeypatch.setattr(suite, "make_overlay", lambda *_: None)
    monkeypatch.setattr("harness.run.suite.prepared", lambda *_: None)
    return fakes
