"""What ``check`` and ``probe`` return: the content of the commands' JSON, with types.

The fields have the names of the keys; docs/formats.md and docs/probe_details.md describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any, get_args, get_origin, get_type_hints

PRESENT = ("affected", "possibly affected")
"""The statuses of a bug that is there, or may be."""


class CommandResult:
    """A result that is shown as the command's report."""

    text: str
    """The report, as the command prints it."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return f"<pre>{escape(self.text)}</pre>"


@dataclass(frozen=True)
class Package:
    version: str
    origin: str
    candidates: tuple[str, ...]
    newest_of: str


@dataclass(frozen=True)
class Environment:
    where: str
    complete: bool
    notes: tuple[str, ...]
    packages: Mapping[str, Package]


@dataclass(frozen=True)
class Setting:
    """The value of a setting; None if it is not decided."""

    value: Any
    note: str = ""
    """Where the value comes from if no file names it, or why it is not decided."""


@dataclass(frozen=True)
class Period:
    """Affected releases of a scenario's subject, without a release of another status between."""

    releases: tuple[str, ...]
    """The tested releases, oldest first; all are affected."""
    before: str | None
    """The tested release before the first one; it is not affected. None if there is none, or if its
    status is not certain."""
    after: str | None
    """The same for the release after the last one: the bug is fixed there."""
    alive: bool
    """Whether no newer release has a certain status."""
    since: str | None = None
    """The first release that can have it, by upstream's history; None if nothing is known, or if
    ``before`` says more."""


@dataclass(frozen=True)
class Acceptance:
    """A bug that does not count for the exit code."""

    bug: str
    reason: str
    until: str | None
    """The last day (ISO) of the acceptance; None for no end."""
    file: str
    """The file that says so."""

    def holds(self, day: str) -> bool:
        """Whether the acceptance holds on a day (ISO)."""
        return self.until is None or day <= self.until

    def __str__(self) -> str:
        return self.reason + (f" (until {self.until})" if self.until else "")


@dataclass(frozen=True)
class Bug:
    """A bug of the catalogue, and whether the packages have it."""

    name: str
    status: str
    """``affected``, ``possibly affected``, ``unknown``, ``not triggered``, ``not affected`` or
    ``does not apply``."""
    how: str
    why: str
    settings: str
    releases: Mapping[str, str]
    harm: str
    visibility: str
    title: str
    symptom: str
    trigger: str
    remedy: str
    periods: tuple[Period, ...]
    command: str
    accepted: Acceptance | None


@dataclass(frozen=True)
class Advice:
    """The release of a package that has the fewest of the bugs that were found."""

    package: str
    release: str
    avoided: tuple[str, ...]
    """The bugs that were found in the installed release, and that this one does not have."""
    remaining: tuple[str, ...]
    """Those that it has, too, or for which this is not known."""
    new: tuple[str, ...]
    """Bugs that it has and the installed release does not."""

    def __str__(self) -> str:
        many = len(self.avoided) > 1
        has = f"has none of these {len(self.avoided)} bugs:" if many else "does not have"
        parts = [f"{self.package} {self.release} {has} {', '.join(self.avoided)}"]
        if self.remaining:
            remain = "remains" if len(self.remaining) == 1 else "remain"
            parts.append(f"{len(self.remaining)} {remain}: {', '.join(self.remaining)}")
        if self.new:
            parts.append(f"but it has {', '.join(self.new)}")
        return f"{'; '.join(parts)} (not tried with your other pins)"


@dataclass(frozen=True)
class Model:
    """What was recorded of a model of transformers."""

    model: str
    release: str
    """Of transformers: the installed one, or the newest recorded one before it."""
    wrong: Mapping[str, str]
    """The features that are wrong, with the reason."""
    known: bool
    """Whether that release was recorded with the model."""
    untested: tuple[str, ...] = ()
    """The features that were not tested with that release."""

    def __str__(self) -> str:
        if not self.known:
            return f"{self.model}: not recorded for transformers {self.release}"
        gaps = f"; not tested: {', '.join(self.untested)}" if self.untested else ""
        if not self.wrong:
            tested = "tested feature" if gaps else "feature"
            return f"{self.model}: no {tested} is wrong in transformers {self.release}{gaps}"
        return f"{self.model}: wrong in transformers {self.release}: {', '.join(self.wrong)}{gaps}"


@dataclass(frozen=True, repr=False)
class CheckResult(CommandResult):
    """What ``check`` returns."""

    schema: int
    exit_code: int
    text: str
    environment: Environment
    settings: Mapping[str, Setting] | None
    bugs: tuple[Bug, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    models: tuple[Model, ...]
    broken: Mapping[str, str]

    @property
    def affected(self) -> tuple[Bug, ...]:
        """The bugs that the packages have or may have, without those that you accept."""
        return tuple(bug for bug in self.bugs if bug.status in PRESENT and bug.accepted is None)

    def __repr__(self) -> str:
        return f"<CheckResult of {self.environment.where}: {len(self.affected)} bugs>"


@dataclass(frozen=True)
class Broken:
    """A relation that does not hold."""

    relation: str
    text: str
    ratio: float | str | None
    meaning: str
    parameters: tuple[str, ...]
    ranks: tuple[int, ...]
    details: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """A way in which the script was run, and how it differs from the reference."""

    name: str
    kind: str
    why: str | None
    """Why it was run although you did not ask for it; None for the usual ones."""
    ranks: int
    micro_batches: int
    status: str
    """``as the reference``, ``broken`` or ``no answer``."""
    step: int | None
    broken: tuple[Broken, ...]
    notes: tuple[str, ...]
    no_answer: str | None
    spreads: Mapping[str, float | str | None]
    seconds: float


@dataclass(frozen=True)
class Relation:
    relation: str
    status: str
    reason: str


@dataclass(frozen=True)
class KnownBug:
    name: str
    title: str
    why: str


@dataclass(frozen=True)
class Place:
    """Where the first broken layout parts from the reference."""

    layout: str
    stage: str | None
    """None if the place is not determined; ``text`` says why."""
    text: str
    module: str | None
    kind: str | None
    """The class of the module."""
    file: str | None
    line: int | None


@dataclass(frozen=True, repr=False)
class ProbeResult(CommandResult):
    """What ``probe`` returns."""

    schema: int
    exit_code: int
    headline: str
    text: str
    reference: str
    on_cpu: Mapping[str, int]
    written: tuple[str, ...]
    removed: tuple[str, ...]
    layouts: tuple[Layout, ...]
    relations: tuple[Relation, ...]
    where: Place | None
    notes: tuple[str, ...]
    not_tested: tuple[str, ...]
    known: tuple[KnownBug, ...]
    loaded: tuple[str, ...]
    """Your files that the script has loaded: the script, and modules outside of packages."""
    updates_compared: float
    seconds: float

    @property
    def right(self) -> bool:
        """Whether every layout is as the reference."""
        return self.exit_code == 0

    def __repr__(self) -> str:
        return f"<ProbeResult: {self.headline}>"


def of_json(kind: Any, value: Any) -> Any:
    """A value of JSON as a value of this type: a dataclass, a tuple, a mapping, or as it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: of_json(hints[f.name], value[f.name]) for f in fields(kind)})  # type: ignore[operator]
    if value is None or not arguments:
        return value
    if origin is tuple:
        return tuple(of_json(arguments[0], entry) for entry in value)
    if origin is Mapping:
        return {name: of_json(arguments[1], entry) for name, entry in value.items()}
    dataclasses = [part for part in arguments if is_dataclass(part) or get_origin(part)]
    return of_json(dataclasses[0], value) if dataclasses else value
