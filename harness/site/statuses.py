"""Which releases have which bug: what each scenario said of each release, for the site's pages.

Of a history the newest certain answers count; without one, the scenarios' ``affected.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.version import Version

from harness import catalog
from harness.sweep.baseline import cells
from harness.sweep.cells import Status
from harness.sweep.history import History, ReleaseResult
from harness.upstream.index import Release


@dataclass(frozen=True)
class Said:
    """What a scenario said of a release when it ran on it."""

    scenario: str
    package: str
    version: str
    status: Status
    reason: str
    date: str
    """The day (ISO) it was asked."""
    lane: str
    beside: str
    """The other pins of that run, in words; empty where there are none."""

    @property
    def among(self) -> str:
        """The other pins, to be read after something else."""
        return f", with {self.beside}" if self.beside else ""

    @property
    def why(self) -> str:
        """The reason, and with what."""
        return f"{self.reason}{self.among}"


@dataclass(frozen=True)
class Standing:
    """How a release stands towards a bug, and how that is known."""

    status: Status
    told: str
    asked: bool
    """Whether the release was asked itself; else the releases around it were."""


@dataclass(frozen=True)
class Answers:
    """All that was said of releases, and when these appeared."""

    said: tuple[Said, ...]
    releases: tuple[Release, ...] = ()
    """Every release that the history knows of, with its day; none without a history."""
    _by: dict[tuple[str, str], dict[str, Said]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for each in sorted(self.said, key=lambda said: Version(said.version)):
            self._by.setdefault((each.scenario, each.package), {})[each.version] = each

    @cached_property
    def days(self) -> Mapping[tuple[str, str], str]:
        """The day (ISO) on which a release of a package appeared, where that is known."""
        return {(release.package, release.version): release.day for release in self.releases}

    def packages(self, scenario: str | None = None) -> list[str]:
        """The packages of which releases were asked, by a scenario or by any; sorted."""
        return sorted({package for name, package in self._by if scenario in (None, name)})

    def scenarios(self, package: str) -> list[str]:
        """The scenarios that were asked of a package's releases; sorted."""
        return sorted({name for name, of in self._by if of == package})

    def of(self, scenario: str, package: str) -> Mapping[str, Said]:
        """What a scenario said, by version, the oldest first."""
        return self._by.get((scenario, package), {})

    def versions(self, package: str) -> list[str]:
        """Every release of a package that some scenario was asked of, the oldest first."""
        asked = {version for (_, of), said in self._by.items() if of == package for version in said}
        return sorted(asked, key=Version)

    def unasked(self, scenario: str, package: str) -> Iterator[Release]:
        """The releases that the history knows and the scenario was never asked of."""
        asked = self.of(scenario, package)
        for release in self.releases:
            if release.package == package and release.version not in asked:
                yield release

    def standing(self, scenario: str, package: str, version: str) -> Standing | None:
        """How a release stands: its own answer, or that of both its neighbours where they agree.

        None where nothing is known of it.
        """
        said = self.of(scenario, package)
        if version in said:
            own = said[version]
            return Standing(own.status, f"asked on {own.date}{own.among}", True)
        certain = [each for each in said.values() if each.status.certain]
        here = Version(version)
        older = [each for each in certain if Version(each.version) < here]
        newer = [each for each in certain if Version(each.version) > here]
        if not (older and newer) or older[-1].status is not newer[0].status:
            return None
        around = f"as {older[-1].version} and {newer[0].version} are; not asked itself"
        return Standing(older[-1].status, around, False)

    def beside(self, scenario: str, package: str) -> str:
        """With which releases of the bug's own package another one was asked, if always with those:
        ``with transformers 4.36.2``."""
        beside = {said.beside for said in self.of(scenario, package).values()}
        own = next(iter(catalog.scenario(scenario).pins), package)
        return f"with {beside.pop()}" if own != package and len(beside) == 1 else ""

    def newest(self, scenario: str, package: str) -> Said | None:
        """The certain answer of a package's newest release that gave one; None where none did."""
        certain = [each for each in self.of(scenario, package).values() if each.status.certain]
        return certain[-1] if certain else None


def recorded() -> Answers:
    """What came with the harness: the scenarios' ``affected.json``."""
    return Answers(tuple(map(_said, cells())))


def of(history: History) -> Answers:
    """What a history knows: of each release the newest certain answer, else the newest."""
    known = [asked for name in catalog.sound() for asked in history.known(name).values()]
    return Answers(tuple(map(_said, known)), tuple(history.releases()))


def _said(asked: ReleaseResult) -> Said:
    cell = asked.cell
    others = {name: version for name, version in cell.pins.items() if name != asked.package}
    beside = ", ".join(f"{name} {version}" for name, version in others.items())
    first = (cell.reason.splitlines() or [""])[0]
    return Said(
        cell.scenario,
        asked.package,
        asked.version,
        cell.status,
        first,
        cell.date,
        cell.lane,
        beside,
    )
