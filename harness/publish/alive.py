"""The bugs that the newest tested releases still have, from recorded runs; docs/alive.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from harness.bugs import catalog, remedies, result_file
from harness.bugs.api.spec import BUGGY, HARMS, RELEASED, VISIBILITIES
from harness.bugs.periods import Alive, alive
from harness.bugs.results import Status
from harness.publish.bugs import Bug
from harness.rank import run_folder
from harness.run.grade import grade
from harness.system.text import LINK


@dataclass(frozen=True)
class AliveBug(Bug):
    """A bug that a release has, as users of that release see it."""

    alive: Alive
    finding: str
    """What the run on this release showed, with figures; empty if it is not kept."""

    @property
    def release(self) -> str:
        """The package and its version."""
        return f"{self.upstream} {self.alive.release}"

    @property
    def facts(self) -> dict[str, str]:
        """What a user of this release needs to know, by row."""
        rows = {
            "release": self.release,
            "trigger": self.alive.trigger,
            "symptom": self.scenario.symptom,
            "our run showed": self.finding,
            "remedy": remedies.of(self.name, self.alive.release),
            "harm": f"{self.scenario.harm}; {self.scenario.visibility}",
            "command": f"`{self.command}`",
            "known upstream": self.known_upstream[1],
        }
        return {row: text for row, text in rows.items() if text}

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

    @cached_property
    def known_upstream(self) -> tuple[str, str]:
        """Whether the maintainers know of the bug: in a word, and with links."""
        scenario, reports = self.scenario, LINK.findall(" ".join(self.scenario.report))
        links = ", ".join(reports or scenario.report)
        if scenario.known_in_part:
            return "in part", f"in part: {scenario.known_in_part}: {', '.join(reports)}"
        if not scenario.known_upstream:
            return "no", f"no; related: {links}" if reports else "no"
        fixed = [period for period in self.periods if period.after]
        if not fixed:
            return "yes", f"yes: {links}"
        spell = f"{fixed[-1].first} to {fixed[-1].last}, fixed in {fixed[-1].after}"
        text = f"of the bug in {spell}: {links}; we know no report about {self.alive.release}"
        return "in older releases", text


def alive_bugs() -> list[AliveBug]:
    """The bugs that recorded runs show to be alive, most damaging and hardest to notice first."""
    bugs = [each for name in catalog.sound() if (each := alive(name))]
    return by_harm(AliveBug(each.scenario, each, finding(each)) for each in bugs)


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
