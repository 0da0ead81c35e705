"""The bugs that the newest tested releases still have, from recorded runs; docs/alive.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from harness.bugs import catalog, remedies, result_file
from harness.bugs.api.spec import BUGGY, HARMS, RELEASED, VISIBILITIES, Scenario
from harness.bugs.periods import Alive, alive, periods
from harness.bugs.results import Status
from harness.rank import run_folder
from harness.run.grade import grade
from harness.system.text import LINK


@dataclass(frozen=True)
class AliveBug:
    """A bug that a release has, as users of that release see it."""

    alive: Alive
    finding: str
    """What the run on this release showed, with figures; empty if it is not kept."""

    @property
    def name(self) -> str:
        return self.alive.scenario

    @property
    def scenario(self) -> Scenario:
        return catalog.scenario(self.name)

    @property
    def release(self) -> str:
        """The package and its version."""
        return f"{self.scenario.subject} {self.alive.release}"

    @property
    def folder(self) -> str:
        """Its folder in the checkout."""
        return str(PurePosixPath(catalog.file(self.name)).parent)

    @property
    def has_report(self) -> bool:
        """Whether there is a text for the maintainers."""
        return catalog.has_report(self.name)

    @property
    def facts(self) -> dict[str, str]:
        """What a user of this release needs to know, by row."""
        rows = {
            "release": self.release,
            "trigger": self.trigger,
            "symptom": self.scenario.symptom,
            "our run showed": self.finding,
            "remedy": self.remedy,
            "harm": f"{self.scenario.harm}; {self.scenario.visibility}",
            "command": f"`{self.command}`",
            "known upstream": self.upstream,
        }
        return {row: text for row, text in rows.items() if text}

    @property
    def trigger(self) -> str:
        """What a run must do to meet the bug."""
        as_published = self.alive.variant == RELEASED
        return self.scenario.trigger if as_published else self.scenario.about(self.alive.variant)

    @property
    def remedy(self) -> str:
        """What a user of this release can do."""
        return remedies.of(self.name, self.alive.release)

    @property
    def command(self) -> str:
        """The command that shows the bug."""
        scenario, bug = self.scenario, self.alive
        run = f"python -m harness run scenario={self.name}"
        if bug.variant != RELEASED:
            return f"{run} variant={bug.variant}"
        pins = {**scenario.pins, **scenario.pins_of(BUGGY)}
        if pins[scenario.subject] == bug.release and not scenario.variant(BUGGY).defects:
            return run
        return f"{run} variant=released pins.{scenario.subject}={bug.release}"

    @property
    def known_by(self) -> str:
        """Whether the maintainers know of the bug, in a word."""
        if self.scenario.known_in_part:
            return "in part"
        if not self.scenario.known_upstream:
            return "no"
        fixed = any(period.after for period in periods(self.name))
        return "in older releases" if fixed else "yes"

    @property
    def upstream(self) -> str:
        """Whether the maintainers know of the bug, with links."""
        reports = LINK.findall(" ".join(self.scenario.report))
        if self.scenario.known_in_part:
            return f"in part: {self.scenario.known_in_part}: {', '.join(reports)}"
        if not self.scenario.known_upstream:
            return f"no; related: {', '.join(reports)}" if reports else "no"
        links = ", ".join(reports or self.scenario.report)
        fixed = [period for period in periods(self.name) if period.after]
        if not fixed:
            return f"yes: {links}"
        spell = f"{fixed[-1].first} to {fixed[-1].last}, fixed in {fixed[-1].after}"
        return f"of the bug in {spell}: {links}; we know no report about {self.alive.release}"


def alive_bugs() -> list[AliveBug]:
    """The bugs that recorded runs show to be alive, most damaging and hardest to notice first."""
    bugs = [each for name in catalog.sound() if (each := alive(name))]
    return by_harm(AliveBug(each, finding(each)) for each in bugs)


def by_harm(bugs: Iterable[AliveBug]) -> list[AliveBug]:
    """Bugs with the most damaging and the hardest to notice first."""

    def order(bug: AliveBug) -> tuple[int, int, str]:
        scenario = bug.scenario
        return HARMS.index(scenario.harm), VISIBILITIES.index(scenario.visibility), bug.name

    return sorted(bugs, key=order)


def finding(bug: Alive) -> str:
    """The first line of what the recorded run on a release showed."""
    if bug.variant == RELEASED:
        subject = catalog.scenario(bug.scenario).subject
        reasons = [
            cell.reason
            for cell in result_file.statuses(bug.scenario)
            if cell.pins[subject] == bug.release and cell.status is Status.AFFECTED
        ]
    else:
        with run_folder.recorded(bug.scenario) as run:
            trials = grade(run).trials if run else ()
        reasons = [trial.reason for trial in trials if trial.variant == bug.variant]
    return next((reason.partition("\n")[0] for reason in reasons), "")
