"""A cell: the status of one combination of releases for one scenario, and how it was found."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from harness.api.spec import Outcome


class Status(str, Enum):
    """Whether a release has the bug."""

    AFFECTED = "affected"
    NOT_AFFECTED = "not affected"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"

    def __str__(self) -> str:
        return self.value

    @property
    def certain(self) -> bool:
        return self in (Status.AFFECTED, Status.NOT_AFFECTED)


STATUSES = {
    Outcome.SYMPTOM: Status.AFFECTED,
    Outcome.CLEAN: Status.NOT_AFFECTED,
    Outcome.INCONCLUSIVE: Status.INCONCLUSIVE,
    Outcome.UNSUPPORTED: Status.UNSUPPORTED,
}


@dataclass(frozen=True)
class Cell:
    """The result of one run of a scenario on releases as published."""

    scenario: str
    pins: Mapping[str, str]
    status: Status
    reason: str
    """The finding, how the trigger was exercised, or why the status is not certain."""
    lane: str
    python: str
    torch: str | None
    date: str
    """The day (ISO) of the run."""
    seconds: float = 0.0
    """Wall seconds of the trial."""
    step: int | None = None
    """The first step with the symptom; 0: before the first."""
    run: str | None = None
    """The run folder; None if nothing ran."""
    log: tuple[str, ...] = ()
    """For an inconclusive cell, the end of the first failing rank's log."""
    stored: bool = False
    """Whether it was read from the cache."""

    @property
    def started(self) -> bool:
        """Whether it ran, now or when it was stored. False if it could not be installed."""
        return self.stored or (self.run is not None and self.status is not Status.UNSUPPORTED)

    @property
    def environment(self) -> tuple[str, ...]:
        """The lane, Python and torch of the run: in another one the status may differ."""
        return environment(self.lane, self.python, self.torch)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: Any) -> Cell:
        """A stored cell; raises ValueError if a field is missing or not valid."""
        if isinstance(content, dict) and "answer" in content:  # older histories
            content = {("status" if k == "answer" else k): v for k, v in content.items()}
        if not isinstance(content, dict) or content.keys() != FIELDS.keys():
            raise ValueError("not the fields of a cell")
        for name, is_valid in FIELDS.items():
            if not is_valid(content[name]):
                raise ValueError(f"no {name} of a cell: {content[name]!r}")
        status, log = Status(content["status"]), tuple(content["log"])
        return Cell(**{**content, "status": status, "log": log})

    @staticmethod
    def of_fact(scenario: str, fact: Mapping[str, Any]) -> Cell:
        """The cell of a fact in ``affected.json``, with the fields that are kept there."""
        names = ("reason", "step", "lane", "python", "torch", "date")
        fields = {name: fact[name] for name in names}
        return Cell(scenario, dict(fact["pins"]), Status(fact["status"]), **fields)


def environment(lane: str, python: str, torch: str | None) -> tuple[str, ...]:
    """Lane, minor version of Python, and version of torch without its build."""
    return lane, ".".join(python.split(".")[:2]), (torch or "").partition("+")[0]


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_day(value: Any) -> bool:
    return _is_text(value) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None


FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "scenario": _is_text,
    "pins": lambda value: type(value) is dict and all(_is_text(v) for v in value.values()),
    "status": lambda value: value in [str(status) for status in Status],
    "reason": _is_text,
    "lane": _is_text,
    "python": _is_text,
    "torch": lambda value: value is None or _is_text(value),
    "date": _is_day,
    "seconds": lambda value: type(value) in (int, float) and 0 <= value < math.inf,
    "step": lambda value: value is None or (type(value) is int and value >= 0),
    "run": lambda value: value is None or _is_text(value),
    "log": lambda value: type(value) is list and all(map(_is_text, value)),
    "stored": lambda value: type(value) is bool,
}
"""The fields of a stored cell, each with a check of its value."""
