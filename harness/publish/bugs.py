"""The content of a bug's page: of its README.md, and of its page on the site."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from harness.bugs import catalog, commits, remedies, result_file
from harness.bugs.api.settings import in_words
from harness.bugs.api.spec import Scenario
from harness.bugs.commits import BugCommit
from harness.bugs.periods import Period, periods, tested
from harness.bugs.results import Result, Status
from harness.publish import inputs
from harness.publish.inputs import Evidence
from harness.run.verdict_text import releases
from harness.system.text import count, listed, short


@dataclass(frozen=True)
class Bug:
    """A scenario of the catalogue, with the results of its recorded runs.

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
        """The affected releases, from recorded runs alone, as in its advisory."""
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
    def has_report(self) -> bool:
        """Whether there is a text for the maintainers."""
        return catalog.has_report(self.name)

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
        knobs = self.scenario.knobs.items()
        return [(f"scenario.{name}={knob.default}", knob.meaning) for name, knob in knobs]

    @property
    def symptom(self) -> str:
        """What ``detect`` looks for; for an oracle, the docstring of ``documented``."""
        detect = catalog.load(self.name).detect
        return _doc(getattr(getattr(detect, "__self__", None), "documented", detect))

    @property
    def trigger(self) -> str:
        """What ``exercised`` looks for."""
        if conditions := self.scenario.triggered:
            return f"{listed([f'{k} is {text}' for k, text in in_words(conditions).items()])}."
        return _doc(catalog.load(self.name).exercised)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The runs that are kept in its folder, newest first."""
        return inputs.kept_evidence(self.name)

    @cached_property
    def insufficient_checks(self) -> Mapping[str, bool]:
        """The insufficient checks, and whether each fired in the buggy variant."""
        checks_by_run = (each.insufficient_checks for each in self.evidence)
        return next(filter(None, checks_by_run), {})

    @property
    def statuses(self) -> list[list[str]]:
        """The status of each tested release, after a row of titles. Equal cells share a row; empty
        columns are left out."""
        cells = result_file.statuses(self.name)
        if not cells:
            return []
        # the package with the most tested releases
        package = max(self.scenario.pins, key=lambda n: len({cell.pins[n] for cell in cells}))
        rows = [[package, *_ALIKE]]
        for alike, group in itertools.groupby(cells, key=lambda cell: _alike(package, cell)):
            rows.append([", ".join(cell.pins[package] for cell in group), *alike])
        selectors = [any(column[1:]) for column in zip(*rows, strict=True)]
        return [list(itertools.compress(row, selectors)) for row in rows]

    @property
    def mutations(self) -> list[Mapping[str, str]]:
        """The mutations of the code with the bug, and the outcome of each."""
        file = catalog.folder(self.name) / catalog.MUTATIONS
        if not file.is_file():
            return []
        return list(json.loads(file.read_text(encoding="utf-8")).values())

    @property
    def facts(self) -> dict[str, str]:
        """What upstream says about the bug, and how it is run here."""
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


def _alike(package: str, cell: Result) -> tuple[str, ...]:
    """What cells must have in common to share a row."""
    others = ", ".join(f"{n} {v}" for n, v in cell.pins.items() if n != package)
    why = "" if cell.status.certain else short(cell.reason, 160)
    platform = cell.lane, cell.python, str(cell.torch)
    return (str(cell.status), others, *platform, cell.day, why)


def _changed(change: BugCommit) -> str:
    """A commit with its title, and a link to the pull request that the title names."""
    title = re.sub(r"#(\d+)", f"[#\\1]({change.pull})", change.title, count=1)
    return f"[{change.commit[:12]}]({change.link}) of {change.day} {change.did}: {title}"
