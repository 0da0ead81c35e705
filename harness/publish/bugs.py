"""The content of a bug's page: of its README.md, and of its page on the site."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from packaging.version import Version

from harness import catalog
from harness.api.knobs import knobs, meaning
from harness.api.spec import BUGGY, RELEASED, Scenario
from harness.nightly.history_rows import ReleaseResult
from harness.publish import charts, inputs, timelines
from harness.publish.alive import AliveBug, finding
from harness.publish.charts import Chart
from harness.publish.inputs import Evidence, Material, ShownRun
from harness.ranges import affected, commits, remedies
from harness.ranges.advisories import file_name
from harness.ranges.cell import Cell, Status
from harness.ranges.commits import BugCommit
from harness.ranges.periods import Period, alive_in, periods, tested
from harness.runs.results import TrialResult
from harness.runs.verdict_text import first_seen, releases
from harness.system.terminal import count
from harness.system.text import short


@dataclass(frozen=True)
class Bug:
    """A scenario of the catalogue, with what recorded runs showed of it.

    Texts are our own prose: code is in backticks, addresses are bare or as ``[text](address)``, and
    a line break separates items.
    """

    name: str

    @property
    def scenario(self) -> Scenario:
        return catalog.scenario(self.name)

    @property
    def upstream(self) -> str:
        """The package that has the bug."""
        return catalog.subject(self.name)

    @property
    def folder(self) -> str:
        """Its folder in the checkout."""
        return str(PurePosixPath(catalog.file(self.name)).parent)

    @cached_property
    def story(self) -> list[str]:
        """The paragraphs of its docstring after the title."""
        return inspect.cleandoc(catalog.story(self.name)).split("\n\n")[1:]

    @cached_property
    def periods(self) -> list[Period]:
        """The affected releases by the recorded runs alone, as its advisory has them."""
        return periods(self.name)

    @property
    def concerned(self) -> dict[str, str]:
        """The releases, the condition, and the remedy."""
        scenario = self.scenario
        absent = (
            f"{each.releases}: {each.why}" + (f", {each.link}" if each.link else "")
            for each in scenario.absent
        )
        rows = {
            "affected": "\n".join(f"{self.upstream} {period}" for period in self.periods)
            or self._nobody(),
            "cannot have it": "\n".join(absent),
            "only with": scenario.trigger,
            "harm": f"{scenario.harm}; {scenario.visibility}",
            "remedy": remedies.of(self.name),
            "check your releases": f"`python -m harness check scenario={self.name}`",
        }
        return {row: text for row, text in rows.items() if text}

    def _nobody(self) -> str:
        """Which releases were tested, if none has the bug; empty if none was tested."""
        free = [v for v, status in tested(self.name).items() if status is Status.NOT_AFFECTED]
        if not free:
            return ""
        those = f"{self.upstream} {free[0]} to {free[-1]}"
        return f"no: none of the {len(free)} releases that we tested has the bug ({those})"

    @property
    def script_needs(self) -> str:
        """What ``report.py`` needs; empty if there is no such script."""
        file = catalog.folder(self.name) / catalog.REPORT_SCRIPT
        if not file.is_file():
            return ""
        torch = re.search(r"^\s*(import|from) torch\b", file.read_text(encoding="utf-8"), re.M)
        return f"{'torch and ' if torch else ''}the libraries named at its top"

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Each parameter with its default, and its meaning."""
        found = knobs(catalog.load(self.name).Params)
        return [(f"scenario.{knob.name}={knob.default}", meaning(knob)) for knob in found]

    @property
    def symptom(self) -> str:
        """What ``detect`` looks for: an oracle's docstring is that of its scenario."""
        detect = catalog.load(self.name).detect
        return _doc(getattr(getattr(detect, "__self__", None), "documented", detect))

    @property
    def trigger(self) -> str:
        """What ``exercised`` looks for."""
        return _doc(catalog.load(self.name).exercised)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The runs that are kept in its folder, newest first."""
        return inputs.kept_evidence(self.name)

    @cached_property
    def insufficient_checks(self) -> Mapping[str, bool]:
        """The insufficient checks, and whether each fired in the buggy variant."""
        found = (each.insufficient_checks for each in self.evidence)
        return next(filter(None, found), {})

    @property
    def statuses(self) -> list[list[str]]:
        """The status of each tested release, with a row of titles first; equal cells share a row,
        and a column that says nothing is left out."""
        cells = affected.of(self.name)
        if not cells:
            return []
        package = _varied(self.scenario, cells)
        rows = [[package, *_ALIKE]]
        for alike, group in itertools.groupby(cells, key=lambda cell: _alike(package, cell)):
            rows.append([", ".join(cell.pins[package] for cell in group), *alike])
        told = [any(column[1:]) for column in zip(*rows, strict=True)]
        return [list(itertools.compress(row, told)) for row in rows]

    @property
    def mutations(self) -> list[Mapping[str, str]]:
        """The mutations of the code with the bug, and what became of each."""
        file = catalog.folder(self.name) / catalog.MUTATIONS
        if not file.is_file():
            return []
        return list(json.loads(file.read_text(encoding="utf-8")).values())

    @property
    def facts(self) -> dict[str, str]:
        """What upstream says of the bug, and what is run of it."""
        scenario = self.scenario
        chosen = {v: {**scenario.pins, **scenario.pins_of(v)} for v in scenario.variants}
        lanes = " or ".join(lane.value.upper() for lane in scenario.lanes)
        rows = {
            "report": "\n".join(scenario.report),
            "fix": scenario.fix,
            "documented symptom": scenario.symptom,
            "releases that run here": releases(chosen),
            "commits": "\n".join(map(_changed, commits.of(self.name))),
            "runs on": f"{count(scenario.ranks, 'rank')}, {lanes}",
        }
        return {row: text for row, text in rows.items() if text}


def _doc(function: Any) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


_ALIKE = ("status", "other pins", "lane", "Python", "torch", "tested on", "reason")


def _alike(package: str, cell: Cell) -> tuple[str, ...]:
    """What cells must have in common to share a row."""
    others = ", ".join(f"{n} {v}" for n, v in cell.pins.items() if n != package)
    why = "" if cell.status.certain else short(cell.reason, 160)
    environment = cell.lane, cell.python, str(cell.torch)
    return (str(cell.status), others, *environment, cell.last_seen, why)


def _varied(scenario: Scenario, cells: Sequence[Cell]) -> str:
    """The package of the rows: the one with the most tested releases."""
    return max(scenario.pins, key=lambda name: len({cell.pins[name] for cell in cells}))


def _changed(change: BugCommit) -> str:
    """A commit with its title, and a link to the pull request that the title names."""
    title = re.sub(r"#(\d+)", f"[#\\1]({change.pull})", change.title, count=1)
    return f"[{change.commit[:12]}]({change.link}) of {change.day} {change.did}: {title}"


@dataclass(frozen=True)
class ShownBug(Bug):
    """A bug with all its results, from a history and from runs."""

    material: Material

    @property
    def known_upstream(self) -> str:
        """Whether the maintainers know of the bug, which the newest release does not have."""
        if self.scenario.known_upstream:
            return "yes"
        if self.scenario.known_in_part:
            return f"in part: {self.scenario.known_in_part}"
        fixed = any(period.after for period in self.periods)
        return "fixed upstream, without a report of this symptom" if fixed else "no"

    @property
    def shown(self) -> ShownRun | None:
        """The run that its pictures show."""
        return self.material.shown.get(self.name)

    @cached_property
    def newest(self) -> ReleaseResult | None:
        """The result of the highest release with a certain status."""
        return self.material.statuses.newest(self.name, self.upstream)

    @cached_property
    def alive(self) -> AliveBug | None:
        """The bug as the highest release with a certain status has it; None if it has it not."""
        if self.newest is None:
            return None
        found = alive_in(self.name, self.newest.version, self.newest.cell.status)
        if found is None:
            return None
        own = found.variant == RELEASED
        return AliveBug(found, self.newest.reason if own else finding(found))

    @property
    def now(self) -> tuple[str, str]:
        """The status of the highest release with a certain status, and the same in words."""
        if self.newest is None:
            return "", ""
        release = f"{self.newest.package} {self.newest.version}"
        if self.alive is None:
            return str(Status.NOT_AFFECTED), f"{release}: not affected"
        other = "" if self.newest.cell.status is Status.AFFECTED else " with another trigger"
        return str(Status.AFFECTED), f"{release}: alive{other}"

    @property
    def advisory(self) -> str:
        """The address of its advisory on the site; there is one if it has periods."""
        return f"advisories/{file_name(self.name)}"

    @cached_property
    def pictures(self) -> list[Chart]:
        return [charts.chart(picture) for picture in self.shown.pictures] if self.shown else []

    @cached_property
    def strips(self) -> list[Chart]:
        """Which releases of each package have the bug, if more than one was tested."""
        statuses = self.material.statuses
        packages = [p for p in statuses.packages(self.name) if len(statuses.of(self.name, p)) > 1]
        packages.sort(key=lambda package: package != self.upstream)
        return [
            timelines.strip(list(self._strip(p)), p, statuses.others(self.name, p))
            for p in packages
        ]

    def _strip(self, package: str) -> Iterator[Mapping[str, str | None]]:
        statuses = self.material.statuses
        results = statuses.of(self.name, package)
        first = Version(next(iter(results)))
        tested: list[Mapping[str, str | None]] = [
            {
                "version": result.version,
                "day": statuses.days.get((package, result.version)),
                "status": str(result.cell.status),
                "why": result.why,
            }
            for result in results.values()
        ]
        others: list[Mapping[str, str | None]] = [
            {
                "version": release.version,
                "day": release.day,
                "status": timelines.UNTESTED,
                "why": "yanked" if release.yanked else "",
            }
            for release in statuses.untested(self.name, package)
            if Version(release.version) > first
        ]
        yield from sorted([*tested, *others], key=lambda row: Version(str(row["version"])))

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The run that the pictures show, and the kept ones."""
        own = [inputs.of_run(self.shown)] if self.shown else []
        return [*own, *inputs.kept_evidence(self.name)]

    @property
    def first_seen(self) -> str:
        buggy = self.trial(BUGGY)
        return first_seen(buggy) if buggy else ""

    def trial(self, variant: str) -> TrialResult | None:
        """The trial of a variant in the run that the pictures show."""
        trials = self.shown.result.trials if self.shown else ()
        return next((t for t in trials if t.variant == variant), None)

    @property
    def text(self) -> str:
        """The text that a search looks through, in lower case."""
        scenario = self.scenario
        parts = (
            self.name,
            scenario.title,
            scenario.symptom,
            scenario.trigger,
            scenario.harm,
            scenario.visibility,
            *scenario.pins,
            *self.story,
        )
        return " ".join(" ".join(parts).split()).lower()
