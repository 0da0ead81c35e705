"""A bug, as its page tells it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.version import Version

from harness import catalog
from harness.report import first_seen
from harness.results import TrialResult
from harness.site import charts, evidence, timelines
from harness.site.chart import Chart
from harness.site.evidence import Evidence
from harness.site.inputs import Material
from harness.site.runs import Shown
from harness.site.statuses import Said
from harness.spec import BUGGY, Scenario
from harness.sweep.cells import Status


@dataclass(frozen=True)
class Bug:
    """A scenario of the catalogue, with all that is known of it."""

    name: str
    material: Material

    @property
    def scenario(self) -> Scenario:
        return catalog.scenario(self.name)

    @property
    def upstream(self) -> str:
        """The package whose bug it is."""
        return next(iter(self.scenario.pins), "torch")

    @cached_property
    def story(self) -> list[str]:
        """The paragraphs of its docstring."""
        return [part for part in inspect.cleandoc(catalog.story(self.name)).split("\n\n") if part]

    @property
    def shown(self) -> Shown | None:
        """The run that its pictures are of."""
        return self.material.shown.get(self.name)

    @cached_property
    def newest(self) -> Said | None:
        """What the newest release that gave an answer said."""
        return self.material.answers.newest(self.name, self.upstream)

    @property
    def alive(self) -> bool:
        """Whether the newest release that gave an answer is affected."""
        return bool(self.newest and self.newest.status is Status.AFFECTED)

    @cached_property
    def pictures(self) -> list[Chart]:
        return [charts.chart(picture) for picture in self.shown.pictures] if self.shown else []

    @cached_property
    def strips(self) -> list[Chart]:
        """Which releases of each package have the bug, where more than one was asked."""
        answers = self.material.answers
        packages = [p for p in answers.packages(self.name) if len(answers.of(self.name, p)) > 1]
        packages.sort(key=lambda package: package != self.upstream)
        return [
            timelines.strip(list(self._strip(p)), p, answers.beside(self.name, p)) for p in packages
        ]

    def _strip(self, package: str) -> Iterator[Mapping[str, str | None]]:
        answers = self.material.answers
        said = answers.of(self.name, package)
        first = Version(next(iter(said)))
        asked: list[Mapping[str, str | None]] = [
            {
                "version": said.version,
                "day": answers.days.get((package, said.version)),
                "status": str(said.status),
                "why": said.why,
            }
            for said in said.values()
        ]
        others: list[Mapping[str, str | None]] = [
            {
                "version": release.version,
                "day": release.day,
                "status": "not asked",
                "why": "yanked" if release.yanked else "",
            }
            for release in answers.unasked(self.name, package)
            if Version(release.version) > first
        ]
        yield from sorted([*asked, *others], key=lambda row: Version(str(row["version"])))

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The run that was graded just now, and those that are kept."""
        own = [evidence.of_run(self.shown)] if self.shown else []
        return [*own, *evidence.kept(self.name)]

    @cached_property
    def blind(self) -> Mapping[str, bool]:
        """The usual checks, and whether each fired where the bug is in."""
        return next((each.blind for each in self.evidence if each.blind), {})

    @property
    def found(self) -> TrialResult | None:
        """The trial in which the bug was seen."""
        trials = self.shown.result.trials if self.shown else ()
        return next((t for t in trials if t.variant == BUGGY), None)

    @property
    def first_seen(self) -> str:
        return first_seen(self.found) if self.found else ""

    def trial(self, variant: str) -> TrialResult | None:
        """What a variant showed in the run that the pictures are of."""
        trials = self.shown.result.trials if self.shown else ()
        return next((t for t in trials if t.variant == variant), None)

    def question(self, of: str) -> str:
        """What ``detect`` or ``exercised`` asks, in its own words."""
        function: Any = getattr(catalog.load(self.name), of)
        return " ".join((inspect.getdoc(function) or "").split())

    @property
    def text(self) -> str:
        """All that a search looks through, in small letters."""
        told = self.scenario
        parts = (
            self.name,
            told.title,
            told.symptom,
            told.trigger,
            told.goes_wrong,
            *told.pins,
            *self.story,
        )
        return " ".join(" ".join(parts).split()).lower()
