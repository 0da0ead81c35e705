"""Results: what a trial of a scenario showed, wherever it is kept.

The file of a bug, the cache, and the history of nightlies keep a result as one JSON line
(``Result.to_json``); see ``result_file`` for the first. A *cell* of a matrix is a result of the
variant ``released``: it gives its releases a status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypedDict, cast

from harness.bugs.api.spec import Finding, Outcome, Verdict
from harness.system.errors import ExitCode
from harness.system.text import StrEnum


class Status(StrEnum):
    """Whether a release has the bug."""

    AFFECTED = "affected"
    NOT_AFFECTED = "not affected"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"

    @property
    def certain(self) -> bool:
        return self in (Status.AFFECTED, Status.NOT_AFFECTED)


STATUSES = {
    Outcome.SYMPTOM: Status.AFFECTED,
    Outcome.CLEAN: Status.NOT_AFFECTED,
    Outcome.INCONCLUSIVE: Status.INCONCLUSIVE,
    Outcome.UNSUPPORTED: Status.UNSUPPORTED,
}
OUTCOMES = {status: outcome for outcome, status in STATUSES.items()}


class CellJson(TypedDict):
    """A cell in the JSON of ``matrix``, ``confirm`` and ``watch``."""

    scenario: str
    pins: dict[str, str]
    status: Status
    reason: str
    lane: str
    python: str
    torch: str | None
    date: str
    seconds: float | None
    step: int | None
    run: str | None
    log: list[str]
    stored: bool


class TrialJson(TypedDict):
    """A trial in ``verdict.json``."""

    variant: str
    outcome: Outcome
    expected: Outcome | None
    reason: str
    seconds: float | None
    finding: dict[str, Any] | None
    failure: Mapping[str, Any] | None
    insufficient_checks: Mapping[str, bool] | None
    shims: Mapping[str, int] | None
    environment: Mapping[str, Any] | None
    phases: Mapping[str, float] | None


class VerdictJson(TypedDict):
    """The content of ``verdict.json``, which ``grade --json`` prints."""

    scenario: str
    verdict: Verdict
    reasons: list[str]
    trials: list[TrialJson]
    exit_code: int


@dataclass(frozen=True)
class Result:
    """What one trial of a scenario showed, on which releases, where and when."""

    scenario: str
    variant: str
    pins: Mapping[str, str]
    outcome: Outcome
    reason: str
    """The finding, how the trigger occurred, or what went wrong."""
    lane: str
    day: str
    """The day (ISO) of the run."""
    machine: Mapping[str, Any]
    """The machine, with its Python and torch, as ``machine.facts`` describes it."""
    expected: Outcome | None = None
    """None if either ``symptom`` or ``clean`` is expected."""
    seconds: float = 0.0
    """Wall seconds of the trial."""
    finding: Finding | None = None
    failure: Mapping[str, Any] | None = None
    """The rank that failed first, and its message."""
    insufficient_checks: Mapping[str, bool] | None = None
    """Plausible checks that miss the bug, and whether each fired."""
    shims: Mapping[str, int] | None = None
    """How often each shim was used, over all ranks."""
    environment: Mapping[str, Any] | None = None
    """Versions of Python, torch, CUDA and NCCL, and the GPU, on rank 0."""
    phases: Mapping[str, float] | None = None
    """Wall seconds of each phase, on the slowest rank."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """The commit of our code, and whether files were changed, as ``machine.source`` says."""
    command: str = ""
    seed: int = 0
    run: str = ""
    """The identity of the run, which its other trials share; empty if nothing ran."""
    label: str = ""
    """The name of a run that is kept as evidence: ``h200x2``."""
    folder: str | None = None
    """The run folder; None if nothing ran, or if that was on another machine."""
    log: tuple[str, ...] = ()
    """For an inconclusive cell, the end of the first failing rank's log."""
    stored: bool = False
    """Whether it was read from the cache."""
    since: str = ""
    """Where runs were repeated: the day (ISO) of the first run that showed the same."""

    @property
    def as_expected(self) -> bool:
        if self.expected is None:
            return self.outcome in (Outcome.SYMPTOM, Outcome.CLEAN)
        return self.outcome is self.expected

    @property
    def status(self) -> Status:
        """Whether its releases have the bug. With the symptom of another bug instead, they do not
        have this one."""
        if self.finding and self.finding.another:
            return Status.NOT_AFFECTED
        return STATUSES[self.outcome]

    @property
    def step(self) -> int | None:
        """The first step with the documented symptom; 0: before the first."""
        return self.finding.step if self.finding and self.status is Status.AFFECTED else None

    @property
    def first_day(self) -> str:
        """The day (ISO) of the first run that showed the same."""
        return self.since or self.day

    @property
    def started(self) -> bool:
        """Whether it ran, now or when it was stored. False if it could not be installed."""
        return self.stored or (self.folder is not None and self.status is not Status.UNSUPPORTED)

    @property
    def python(self) -> str:
        return str(self.machine.get("python", ""))

    @property
    def torch(self) -> str | None:
        return self.machine.get("torch")

    @property
    def platform(self) -> tuple[str, ...]:
        """The lane, Python and torch of the run: on another platform the status may differ."""
        return platform_of(self.lane, self.python, self.torch)

    def repeats(self, predecessor: Result) -> bool:
        """Whether it shows the same of its releases, on the same platform."""
        before = (predecessor.status, predecessor.platform)
        return (self.status, self.platform) == before

    def to_json(self) -> dict[str, Any]:
        """The fields of its line, without those that have their default."""
        content = _without_defaults(self)
        if self.finding and self.finding.message == self.reason:
            del content["finding"]["message"]
        return content

    @staticmethod
    def from_json(content: Any) -> Result:
        """The result of a line; raises ValueError, KeyError or TypeError if that is not one."""
        values: dict[str, Any] = {**content, "outcome": Outcome(content["outcome"])}
        if "finding" in values:
            finding = {"message": content["reason"], **content["finding"]}
            lists = {n: tuple(v) for n, v in finding.items() if isinstance(v, list)}
            values["finding"] = Finding(**{**finding, **lists})
        if "expected" in values:
            values["expected"] = Outcome(content["expected"])
        if "log" in values:
            values["log"] = tuple(content["log"])
        return Result(**values)

    def of_trial(self) -> TrialJson:
        """What ``verdict.json`` shows of it."""
        finding = asdict(self.finding) if self.finding else None
        if finding and not finding["another"]:
            del finding["another"]
        content = {name: getattr(self, name) for name in TrialJson.__annotations__}
        return cast(TrialJson, content | {"finding": finding})

    def of_releases(self) -> CellJson:
        """What the JSON of ``matrix``, ``confirm`` and ``watch`` shows of it."""
        special = {"date": self.first_day, "run": self.folder, "log": list(self.log)}
        names = CellJson.__annotations__
        return cast(CellJson, {n: special.get(n, getattr(self, n, None)) for n in names})


def _without_defaults(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that do not have their default, as plain values."""
    content = {}
    for attribute in fields(instance):
        value, factory = getattr(instance, attribute.name), attribute.default_factory
        default = attribute.default if factory is MISSING else factory()
        if value != default or default is MISSING:
            content[attribute.name] = _without_defaults(value) if is_dataclass(value) else value
    plain: dict[str, Any] = json.loads(json.dumps(content))
    return plain


def platform_of(lane: str, python: str, torch: str | None) -> tuple[str, ...]:
    """Lane, minor version of Python, and version of torch without its build."""
    return lane, ".".join(python.split(".")[:2]), (torch or "").partition("+")[0]


@dataclass(frozen=True)
class RunResult:
    """The verdict of a run, and the results of its trials."""

    scenario: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not ``reproduced``."""
    trials: tuple[Result, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this result."""
        if self.verdict is Verdict.UNSUPPORTED:
            return ExitCode.UNSUPPORTED
        if self.verdict is Verdict.INCONCLUSIVE:
            return ExitCode.INCONCLUSIVE
        if self.verdict is Verdict.NOT_REPRODUCED or not all(t.as_expected for t in self.trials):
            return ExitCode.NOT_AS_EXPECTED
        return ExitCode.AS_EXPECTED

    def to_json(self) -> VerdictJson:
        """The content of ``verdict.json``."""
        return {
            "scenario": self.scenario,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "trials": [trial.of_trial() for trial in self.trials],
            "exit_code": self.exit_code,
        }
