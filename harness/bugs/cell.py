"""A cell: the status of one combination of releases for one scenario, and how it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.bugs.api.spec import Outcome
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
    confirmed: str = ""
    """Of a recorded cell, the day (ISO) on which a run last gave the same result; empty if only the
    first run did."""

    @property
    def started(self) -> bool:
        """Whether it ran, now or when it was stored. False if it could not be installed."""
        return self.stored or (self.run is not None and self.status is not Status.UNSUPPORTED)

    @property
    def environment(self) -> tuple[str, ...]:
        """The lane, Python and torch of the run: in another one the status may differ."""
        return environment(self.lane, self.python, self.torch)

    @property
    def last_seen(self) -> str:
        """The day (ISO) of the last run that gave this result."""
        return self.confirmed or self.date

    def to_json(self) -> dict[str, Any]:
        """Its fields, without ``confirmed``, which only recorded cells have."""
        return {name: value for name, value in asdict(self).items() if name != "confirmed"}

    @staticmethod
    def from_json(content: Any) -> Cell:
        """A stored cell; raises ValueError or TypeError if a field is missing or unknown."""
        if isinstance(content, dict) and "answer" in content:  # older histories
            content = {("status" if k == "answer" else k): v for k, v in content.items()}
        status, log = Status(content["status"]), tuple(content["log"])
        return Cell(**{**content, "status": status, "log": log})


def environment(lane: str, python: str, torch: str | None) -> tuple[str, ...]:
    """Lane, minor version of Python, and version of torch without its build."""
    return lane, ".".join(python.split(".")[:2]), (torch or "").partition("+")[0]
