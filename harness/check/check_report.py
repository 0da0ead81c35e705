"""What ``check`` prints for people, and as JSON; other modules write its other formats."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from harness.bugs import catalog
from harness.check.bug_status import RAN, THERE, BugStatus, Checked, advice
from harness.check.environment import Environment
from harness.check.installed import Installed, NewestOf, OneOf, as_fields
from harness.check.places import Place, Places
from harness.check.synonyms import named_in
from harness.python import results
from harness.python.results import Advice, Bug, CheckResult, Model, Package, Setting
from harness.system.installation import as_typed
from harness.system.text import count, harmless, short, unbroken

SCHEMA = 2
"""The version of the JSON, see docs/formats.md; it grows when a field changes or goes."""

AFFECTS, DEPENDS = "affects you", "depends on settings"
"""What every format for people says of a bug that the releases have or may have."""
HEADINGS = {
    AFFECTS: "AFFECT YOU",
    DEPENDS: "DEPEND ON SETTINGS",
    BugStatus.UNKNOWN: "UNKNOWN",
    BugStatus.NOT_TRIGGERED: "NOT TRIGGERED BY THESE SETTINGS",
}
"""What is printed bug by bug; the others are counted."""

NO_SETTINGS = (
    "These releases have the bugs. Name your settings with --deepspeed, --training-args or "
    "--accelerate to see which bugs they can trigger."
)

MORE = "More of these: python -m harness check --long, or python -m harness show NAME"

INCOMPLETE = (
    "not complete: files name what a project needs, and its environment may have more packages"
)

STYLES = {AFFECTS: "bold red", DEPENDS: "bold yellow"}

SHOWN = 5
"""Releases of one package that are printed."""
LONGEST = 160
"""Characters of a reason that are printed; the JSON has it complete."""


@dataclass(frozen=True)
class Report:
    """What ``check`` found out."""

    environment: Environment
    bugs: Sequence[Checked]
    """Of every scenario; most damaging first."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """The scenarios that cannot be used, with the reason."""
    settings: Mapping[str, Setting] | None = None
    notes: Sequence[str] = ()
    """Lines about the accepted bugs."""
    models: Sequence[Model] = ()

    @property
    def remarks(self) -> list[str]:
        """Lines about how the files were read, and about models."""
        return [*self.environment.notes, *map(str, self.models)]

    @property
    def refusals(self) -> list[str]:
        """Lines about the scenarios that cannot be used."""
        return [f"{name} cannot be used: {why}" for name, why in self.broken.items()]

    @property
    def environment_notes(self) -> list[str]:
        """Lines about how the environment was read; the last one says why it is not complete."""
        return [*self.environment.notes, *([] if self.environment.complete else [INCOMPLETE])]

    @property
    def open_bugs(self) -> list[Checked]:
        """The bugs that are there or may be, without the accepted ones."""
        return [checked for checked in self.bugs if checked.counts]

    @property
    def accepted_bugs(self) -> list[Checked]:
        return [checked for checked in self.bugs if checked.accepted and checked.status in THERE]

    @property
    def advice(self) -> list[Advice]:
        return advice(self.bugs, self.settings)

    def needs_settings(self, checked: Checked) -> bool:
        """Whether the bug occurs only with settings that are not known."""
        if self.settings is None and checked.status is BugStatus.AFFECTED:
            return bool(catalog.scenario(checked.scenario).settings)
        return checked.status is BugStatus.POSSIBLY

    def level(self, checked: Checked) -> str:
        """``error`` for a bug that affects the user whatever other settings are, ``warning`` for
        one that depends on settings that are not known, otherwise ``note``, also if it is accepted.
        """
        if checked.accepted or checked.status not in (BugStatus.AFFECTED, BugStatus.POSSIBLY):
            return "note"
        return "warning" if self.needs_settings(checked) else "error"

    def in_words(self, checked: Checked) -> str:
        """``affects you``, ``depends on settings``, or another status; ``unknown, accepted``."""
        words = str(checked.status)
        if checked.status in (BugStatus.AFFECTED, BugStatus.POSSIBLY):
            words = DEPENDS if self.needs_settings(checked) else AFFECTS
        return f"{words}, accepted" if checked.accepted else words

    def headline(self) -> str:
        """The answer in one line: ``2 bugs affect you. 9 more depend on settings ...``"""
        unknown = sum(checked.status is BugStatus.UNKNOWN for checked in self.open_bugs)
        need = sum(map(self.needs_settings, self.open_bugs))
        meet = len(self.open_bugs) - unknown - need
        where = "that you have not named" if self.settings is None else "that are not in your files"
        return (
            f"{count(meet, 'bug')} {_verb(meet, 'affect')} you. "
            f"{need} more {_verb(need, 'depend')} on settings {where}. "
            f"{unknown} {'is' if unknown == 1 else 'are'} unknown."
        )

    def summary(self) -> str:
        """The number of bugs of each kind, in the words of the headline."""
        accepted = self.accepted_bugs
        counted = Counter(self.in_words(c) for c in self.bugs if c not in accepted)
        words = {
            AFFECTS: f"{_verb(counted[AFFECTS], 'affect')} you",
            DEPENDS: f"{_verb(counted[DEPENDS], 'depend')} on settings",
            BugStatus.UNKNOWN: "unknown",
            BugStatus.NOT_AFFECTED: "not in your releases",
            BugStatus.NOT_TRIGGERED: "not triggered by these settings",
            BugStatus.DOES_NOT_APPLY: "about packages or releases that you do not have",
        }
        parts = [f"{counted[kind]} {text}" for kind, text in words.items() if counted[kind]]
        parts += [f"{len(accepted)} accepted"] if accepted else []
        return f"{count(len(self.bugs), 'bug')}: {', '.join(parts) or 'none'}"

    @cached_property
    def places(self) -> Places:
        return Places(self.environment)

    def place(self, checked: Checked) -> Place | None:
        """Where a file names the package with the bug."""
        return self.places.of_package(named_in([catalog.subject(checked.scenario)]))


StyledLine = tuple[str, str | None]
"""A line of the report, and its style."""


def text_lines(report: Report, *, long: bool = False) -> list[StyledLine]:
    """The report for people: the number of bugs, then each bug that affects the user, then one line
    for each other bug; ``long`` has every bug in full. The most damaging bugs come first. A line
    break inside a name does not start a new line."""
    lines: list[StyledLine] = []

    def add(*texts: str, style: str | None = None) -> None:
        lines.extend((unbroken(text), style) for text in texts)

    def head(text: str, style: str = "bold") -> None:
        add("")
        add(text, style=style)

    add(*releases_of(report.environment), *(f"  {note}" for note in report.environment_notes))
    head(report.headline())
    for words, heading in HEADINGS.items():
        group = [checked for checked in report.bugs if report.in_words(checked) == words]
        is_brief = words != AFFECTS and not long
        if not group or (is_brief and words not in (DEPENDS, BugStatus.UNKNOWN)):
            continue
        if is_brief or long:
            head(heading, STYLES.get(words, "bold"))
        for checked in group:
            add(*([_brief(checked)] if is_brief else _whole(checked)))
    if not long and any(report.in_words(c) in (DEPENDS, BugStatus.UNKNOWN) for c in report.bugs):
        add("", as_typed(MORE))
    if report.settings is None and any(map(report.needs_settings, report.open_bugs)):
        add("", NO_SETTINGS)
    for refusal in report.refusals:
        add("", refusal)
    if report.accepted_bugs:
        head("ACCEPTED")
    for checked in report.accepted_bugs:
        add(f"{checked.scenario} ({report.in_words(checked)}): {checked.accepted}")
    for note in report.notes:
        head(note, "yellow")
    for release in report.advice:
        add("", str(release))
    if report.models:
        add("", "MODELS", *(f"  {model}" for model in report.models))
    add("", report.summary())
    return lines


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb


def releases_of(environment: Environment) -> list[str]:
    """The environment's name and its releases; a star marks one that no file names exactly."""
    aside = catalog.only_vehicles()
    packages = sorted(entry for entry in environment.packages.items() if entry[0] not in aside)
    releases = [
        f"{name} {_versions(package)}" + ("*" if isinstance(package, NewestOf) else "")
        for name, package in packages
    ]
    lines = [f"{environment.where}: {', '.join(releases)}"]
    if any(isinstance(package, NewestOf) for _, package in packages):
        lines += ["  * the newest that fits; the files name a range, or only what needs it"]
    return lines


def _versions(package: Installed) -> str:
    """The release of a package, the first of those that a lock file has, or ``?``."""
    versions = package.versions if isinstance(package, OneOf) else ()
    candidates = list(versions[:SHOWN])
    if others := len(versions) - len(candidates):
        candidates.append(f"one of {others:,} others")
    return " or ".join(candidates) or package.version or "?"


def _brief(checked: Checked) -> str:
    """The line about a bug that is unknown, or that depends on settings."""
    scenario = catalog.scenario(checked.scenario)
    if checked.status is BugStatus.UNKNOWN:
        return f"  {checked.scenario}: {short(checked.why, LONGEST)}"
    return f"  {checked.scenario} ({scenario.harm}): only with {scenario.trigger}"


def _whole(checked: Checked) -> list[str]:
    """The lines about one bug; fewer if the user is not affected."""
    scenario = catalog.scenario(checked.scenario)
    title = f"{scenario.harm} ({scenario.visibility}): {scenario.title} [{checked.scenario}]"
    subject = catalog.subject(checked.scenario)
    rows = {
        "releases": f"{subject} {', '.join(map(str, checked.periods))}" if checked.periods else "",
        "seen" if checked.how == RAN else "known": short(checked.why, LONGEST),
        "settings": checked.settings,
        "only with": scenario.trigger,
        "remedy": as_typed(checked.remedy),
        "see it": as_typed(checked.command),
    }
    if checked.status is BugStatus.NOT_TRIGGERED:
        rows = {"settings": checked.settings}
    if checked.status is BugStatus.UNKNOWN:
        rows = {"unknown": short(checked.why, 300), "only with": scenario.trigger}
    lines = [f"  {name + ':':<10} {text}" for name, text in rows.items() if text]
    return ["", title, *lines]


def sentences(checked: Checked) -> str:
    """What happens, how that is known, what sets it off and what to do, in one paragraph."""
    scenario = catalog.scenario(checked.scenario)
    reason = str(checked.accepted) if checked.accepted else short(checked.why, LONGEST)
    about = [f"{scenario.harm}: {scenario.title}", reason, checked.settings]
    hints = [f"Only with {scenario.trigger}", f"Remedy: {checked.remedy}"]
    return ". ".join(filter(None, [*about, *hints]))


def result(report: Report) -> CheckResult:
    """The report as Python and programs get it. The exit code is that of the process."""
    environment, settings = report.environment, report.settings
    return CheckResult(
        schema=SCHEMA,
        exit_code=0,
        text="\n".join(harmless(line) for line, _ in text_lines(report)),
        environment=results.Environment(
            environment.where,
            environment.complete,
            tuple(report.environment_notes),
            {n: Package(**as_fields(p)) for n, p in sorted(environment.packages.items())},
        ),
        settings=None if settings is None else dict(sorted(settings.items())),
        bugs=tuple(map(_bug, report.bugs)),
        advice=tuple(report.advice),
        notes=tuple(report.notes),
        models=tuple(report.models),
        broken=report.broken,
    )


def as_json(report: Report) -> str:
    """The report as JSON; docs/formats.md has its fields."""
    content = asdict(result(report))
    del content["exit_code"]
    return json.dumps(content, indent=2)


def _bug(checked: Checked) -> Bug:
    scenario = catalog.scenario(checked.scenario)
    return Bug(
        name=checked.scenario,
        status=str(checked.status),
        how=checked.how,
        why=checked.why,
        settings=checked.settings,
        releases=dict(checked.releases),
        harm=scenario.harm,
        visibility=scenario.visibility,
        title=scenario.title,
        symptom=scenario.symptom,
        trigger=scenario.trigger,
        remedy=checked.remedy,
        periods=checked.periods,
        command=checked.command,
        accepted=checked.accepted,
    )
