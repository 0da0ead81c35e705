"""What ``check`` prints for people, and as JSON; other modules write its other formats."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from typing import Any

from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.settings import Setting
from harness.check.bug_status import RAN, THERE, BugStatus, Checked, advice
from harness.check.environment import Environment
from harness.check.installed import Installed, NewestOf, OneOf, as_fields
from harness.system.installation import as_typed
from harness.system.terminal import terminal
from harness.system.text import count, short, unbroken

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
class Features:
    """What was recorded of a model of transformers."""

    model: str
    release: str
    """Of transformers: the installed one, or the newest recorded one before it."""
    wrong: Mapping[str, str]
    """The features that are wrong, with the reason."""
    known: bool
    """Whether that release was recorded with the model."""
    untested: Sequence[str] = ()
    """The features that were not tested with that release."""

    def __str__(self) -> str:
        if not self.known:
            return f"{self.model}: not recorded for transformers {self.release}"
        gaps = f"; not tested: {', '.join(self.untested)}" if self.untested else ""
        if not self.wrong:
            tested = "tested feature" if gaps else "feature"
            return f"{self.model}: no {tested} is wrong in transformers {self.release}{gaps}"
        return f"{self.model}: wrong in transformers {self.release}: {', '.join(self.wrong)}{gaps}"


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
    features: Sequence[Features] = ()

    @property
    def remarks(self) -> list[str]:
        """Lines about how the files were read, and about models."""
        return [*self.environment.notes, *map(str, self.features)]

    @property
    def refusals(self) -> list[str]:
        """Lines about the scenarios that cannot be used."""
        return [f"{name} cannot be used: {why}" for name, why in self.broken.items()]


def print_text(console: Console, report: Report, *, long: bool = False) -> None:
    """Print the number of bugs, then each bug that affects the user, then one line for each other
    bug. ``long`` prints every bug in full. The most damaging bugs come first.
    """
    environment, bugs, settings = report.environment, report.bugs, report.settings
    _say(console, *releases_of(environment), *(f"  {note}" for note in _notes(environment)))
    open_bugs = [checked for checked in bugs if checked.counts]
    _say(console, "", headline(open_bugs, settings), style="bold")
    if long:
        _print_groups(console, bugs, settings)
    else:
        _print_briefly(console, open_bugs, settings)
    if settings is None and any(needs_settings(checked, None) for checked in open_bugs):
        _say(console, "", NO_SETTINGS)
    for refusal in report.refusals:
        _say(console, "", refusal)
    print_accepted(console, bugs, settings, report.notes)
    for release in advice(bugs, settings):
        _say(console, "", str(release))
    if report.features:
        _say(console, "", "MODELS", *(f"  {model}" for model in report.features))
    _say(console, "", summary(bugs, settings))


def _notes(environment: Environment) -> list[str]:
    """Lines about how the environment was read; the last one says why it is not complete."""
    return [*environment.notes, *([] if environment.complete else [INCOMPLETE])]


def _say(console: Console, *lines: str, style: str | None = None) -> None:
    """Print lines; a line break inside a name does not start a new line."""
    for line in lines:
        console.print(unbroken(line), style=style)


def headline(open_bugs: Sequence[Checked], settings: Mapping[str, Setting] | None) -> str:
    """The answer in one line: ``2 bugs affect you. 9 more depend on settings ...``"""
    unknown = sum(checked.status is BugStatus.UNKNOWN for checked in open_bugs)
    need = sum(needs_settings(checked, settings) for checked in open_bugs)
    meet = len(open_bugs) - unknown - need
    where = "that you have not named" if settings is None else "that are not in your files"
    return (
        f"{count(meet, 'bug')} {_verb(meet, 'affect')} you. "
        f"{need} more {_verb(need, 'depend')} on settings {where}. "
        f"{unknown} {'is' if unknown == 1 else 'are'} unknown."
    )


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb


def needs_settings(checked: Checked, settings: Mapping[str, Setting] | None) -> bool:
    """Whether the bug occurs only with settings that are not known."""
    if settings is None and checked.status is BugStatus.AFFECTED:
        return bool(catalog.scenario(checked.scenario).settings)
    return checked.status is BugStatus.POSSIBLY


def level(checked: Checked, settings: Mapping[str, Setting] | None) -> str:
    """``error`` for a bug that affects the user whatever other settings are, ``warning`` for one
    that depends on settings that are not known, otherwise ``note``, also if it is accepted."""
    if checked.accepted or checked.status not in (BugStatus.AFFECTED, BugStatus.POSSIBLY):
        return "note"
    return "warning" if needs_settings(checked, settings) else "error"


def _print_groups(
    console: Console, bugs: Sequence[Checked], settings: Mapping[str, Setting] | None
) -> None:
    for words, heading in HEADINGS.items():
        group = [checked for checked in bugs if in_words(checked, settings) == words]
        if group:
            _say(console, "", heading, style=STYLES.get(words, "bold"))
        for checked in group:
            _say(console, *_whole(checked))


def _print_briefly(
    console: Console, open_bugs: Sequence[Checked], settings: Mapping[str, Setting] | None
) -> None:
    conditional_bugs = [c for c in open_bugs if needs_settings(c, settings)]
    unknown = [c for c in open_bugs if c.status is BugStatus.UNKNOWN]
    for checked in open_bugs:
        if checked not in conditional_bugs and checked not in unknown:
            _say(console, *_whole(checked))
    if conditional_bugs:
        _say(console, "", HEADINGS[DEPENDS], style=STYLES[DEPENDS])
    for checked in conditional_bugs:
        scenario = catalog.scenario(checked.scenario)
        _say(console, f"  {checked.scenario} ({scenario.harm}): only with {scenario.trigger}")
    if unknown:
        _say(console, "", HEADINGS[BugStatus.UNKNOWN], style="bold")
    for checked in unknown:
        _say(console, f"  {checked.scenario}: {short(checked.why, LONGEST)}")
    if conditional_bugs or unknown:
        _say(console, "", as_typed(MORE))


def print_accepted(
    console: Console,
    bugs: Sequence[Checked],
    settings: Mapping[str, Setting] | None,
    notes: Sequence[str],
) -> None:
    """Print the accepted bugs that are there, one line each, and the notes."""
    accepted_bugs = [checked for checked in bugs if checked.accepted and checked.status in THERE]
    if accepted_bugs:
        _say(console, "", "ACCEPTED", style="bold")
    for checked in accepted_bugs:
        words = in_words(checked, settings)
        _say(console, f"{checked.scenario} ({words}): {checked.accepted}")
    for note in notes:
        _say(console, "", note, style="yellow")


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


def in_words(checked: Checked, settings: Mapping[str, Setting] | None) -> str:
    """``affects you``, ``depends on settings``, or another status; ``unknown, accepted``."""
    words = str(checked.status)
    if checked.status in (BugStatus.AFFECTED, BugStatus.POSSIBLY):
        words = DEPENDS if needs_settings(checked, settings) else AFFECTS
    return f"{words}, accepted" if checked.accepted else words


def summary(bugs: Iterable[Checked], settings: Mapping[str, Setting] | None) -> str:
    """The number of bugs of each kind, in the words of the headline."""
    bugs = list(bugs)
    accepted = [checked for checked in bugs if checked.accepted and checked.status in THERE]
    counted = Counter(in_words(checked, settings) for checked in bugs if checked not in accepted)
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
    return f"{count(len(bugs), 'bug')}: {', '.join(parts) or 'none'}"


def as_json(report: Report) -> str:
    """The bugs as JSON; docs/formats.md has its fields."""
    environment, settings, text = report.environment, report.settings, StringIO()
    print_text(terminal(text), report)
    content = {
        "schema": SCHEMA,
        "text": text.getvalue().rstrip("\n"),
        "environment": {
            "where": environment.where,
            "complete": environment.complete,
            "notes": _notes(environment),
            "packages": {n: as_fields(p) for n, p in sorted(environment.packages.items())},
        },
        "settings": None
        if settings is None
        else {n: asdict(settings[n]) for n in sorted(settings)},
        "bugs": [_bug(checked) for checked in report.bugs],
        "advice": [asdict(suggestion) for suggestion in advice(report.bugs, settings)],
        "notes": list(report.notes),
        "models": [asdict(model) for model in report.features],
        "broken": dict(report.broken),
    }
    return json.dumps(content, indent=2)


def _bug(checked: Checked) -> dict[str, Any]:
    scenario = catalog.scenario(checked.scenario)
    return {
        "name": checked.scenario,
        "status": str(checked.status),
        "how": checked.how,
        "why": checked.why,
        "settings": checked.settings,
        "releases": dict(checked.releases),
        "harm": scenario.harm,
        "visibility": scenario.visibility,
        "title": scenario.title,
        "symptom": scenario.symptom,
        "trigger": scenario.trigger,
        "remedy": checked.remedy,
        "periods": [asdict(period) for period in checked.periods],
        "command": checked.command,
        "accepted": checked.accepted and asdict(checked.accepted),
    }
