"""The bugs that the newest tested releases still have, from recorded runs; docs/alive.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness import catalog
from harness.api.spec import BUGGY, HARMS, RELEASED, VISIBILITIES, Scenario
from harness.ranges import affected, remedies
from harness.ranges.cell import Status
from harness.ranges.periods import Alive, alive, periods
from harness.runs import run_folder
from harness.runs.grade import grade
from harness.system.installation import for_readers
from harness.system.terminal import count
from harness.system.text import LINK, markdown, markdown_table


@dataclass(frozen=True)
class AliveBug:
    """A bug that a release has, as that release's users meet it."""

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
    def trigger(self) -> str:
        """What a run must do to meet the bug."""
        own = self.alive.variant == RELEASED
        return self.scenario.trigger if own else self.scenario.about(self.alive.variant)

    @property
    def remedy(self) -> str:
        """What a user of this release can do."""
        return remedies.of(self.name, self.alive.release)

    @property
    def command(self) -> str:
        """The command that shows the bug."""
        scenario, found = self.scenario, self.alive
        run = f"python -m harness run scenario={self.name}"
        if found.variant != RELEASED:
            return f"{run} variant={found.variant}"
        pins = {**scenario.pins, **scenario.pins_of(BUGGY)}
        if pins[scenario.subject] == found.release and not scenario.variant(BUGGY).defects:
            return run
        return f"{run} variant=released pins.{scenario.subject}={found.release}"

    @property
    def known(self) -> str:
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
    """The bugs that are alive by the recorded runs, most damaging and hardest to notice first."""
    found = [each for name in catalog.sound() if (each := alive(name))]
    return by_harm(AliveBug(each, finding(each)) for each in found)


def by_harm(bugs: Iterable[AliveBug]) -> list[AliveBug]:
    """Bugs with the most damaging and the hardest to notice first."""

    def order(bug: AliveBug) -> tuple[int, int, str]:
        scenario = bug.scenario
        return HARMS.index(scenario.harm), VISIBILITIES.index(scenario.visibility), bug.name

    return sorted(bugs, key=order)


def finding(found: Alive) -> str:
    """The first line of what the recorded run on a release showed."""
    if found.variant == RELEASED:
        subject = catalog.scenario(found.scenario).subject
        reasons = [
            cell.reason
            for cell in affected.of(found.scenario)
            if cell.pins[subject] == found.release and cell.status is Status.AFFECTED
        ]
    else:
        with run_folder.recorded(found.scenario) as run:
            trials = grade(run).trials if run else ()
        reasons = [trial.reason for trial in trials if trial.variant == found.variant]
    return next((reason.partition("\n")[0] for reason in reasons), "")


KNOWN = (
    "*Known upstream*: *no* means that we found no report. *In part* means that reports cover only "
    "a part of the bug. *In older releases* means that the bug was reported and fixed there, and "
    "that we found no report about the newest release."
)

NOTE = "<!-- Made by `python -m harness pages`. Write nothing here. -->"


def page() -> str:
    """The page."""
    bugs = alive_bugs()
    parts = [
        "# Alive",
        NOTE,
        f"{count(len(bugs), 'bug')} of [the catalogue](bugs.md) "
        f"{'is' if len(bugs) == 1 else 'are'} in the newest release that we tested, as published. "
        "Some of them need another trigger than in older releases. The most damaging bugs come "
        "first, and among these the ones that are hardest to notice.",
        markdown_table(
            ["scenario", "release", "harm", "how it shows", "known upstream"], map(_row, bugs)
        ),
        KNOWN,
        *(part for bug in bugs for part in _section(bug)),
    ]
    return for_readers("\n\n".join(parts) + "\n")


def _row(bug: AliveBug) -> list[str]:
    scenario = bug.scenario
    name = f"[`{bug.name}`](#{bug.name})"
    return [name, bug.release, scenario.harm, scenario.visibility, bug.known]


def _section(bug: AliveBug) -> Iterator[str]:
    scenario = bug.scenario
    rows = {
        "release": bug.release,
        "trigger": bug.trigger,
        "symptom": scenario.symptom,
        "our run showed": bug.finding,
        "remedy": bug.remedy,
        "harm": f"{scenario.harm}; {scenario.visibility}",
        "command": f"`{bug.command}`",
        "known upstream": LINK.sub(r"<\g<0>>", bug.upstream),
        "report for upstream": _report(bug),
    }
    yield f"## {bug.name}"
    yield f"{markdown(scenario.title)}: [its page]({_folder(bug)}/README.md)."
    yield markdown_table(["", ""], [[name, markdown(text)] for name, text in rows.items() if text])


def _report(bug: AliveBug) -> str:
    """Our report and script, if upstream does not know of the bug."""
    if bug.scenario.known_upstream:
        return ""
    names = (catalog.REPORT, catalog.REPORT_SCRIPT)
    return ", ".join(f"[{name}]({_folder(bug)}/{name})" for name in names)


def _folder(bug: AliveBug) -> str:
    return f"../scenarios/{catalog.folder(bug.name).parent.name}/{bug.name}"
