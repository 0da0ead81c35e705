"""What a training under guard writes into the folder of ``--out``; docs/schemas has it as schemas.

Ranks write these files without this module: they import nothing of the harness.
"""

from __future__ import annotations

from typing import Any, TypedDict


class FaultJson(TypedDict):
    """A fault that was told."""

    check: str
    kind: str
    text: str
    ranks: list[int]
    size: float
    parameters: list[str]
    """The first 200 of them."""
    factors: list[str]
    """What ``size`` may be in terms of ranks and micro-batches."""
    step: int
    """The step of the alarm."""
    last_step: int
    times: int
    """In how many checks it was there."""
    optimizer: int
    bugs: list[str]
    """Bugs of the catalogue that may be the reason."""


class GuardAlarmJson(FaultJson):
    """A line of ``alarms.jsonl``."""

    run: str
    time: str


class KnownBugJson(TypedDict):
    """A bug of the catalogue that the run may set off."""

    name: str
    title: str
    settings: dict[str, Any]
    code: str
    certain: bool
    packages: dict[str, str]
    remedy: str
    signature: list[str]
    because: str


class FactsJson(TypedDict, total=False):
    """What is there after the first check."""

    releases: dict[str, str]
    settings: dict[str, Any]


class GuardSummaryJson(FactsJson):
    """``summary.json``."""

    run: str
    time: str
    steps: int
    checks: int
    checked: list[int]
    """The last 1000 checked steps."""
    cost_percent: float
    check_ms: float
    faults: list[FaultJson]
    compared: dict[str, int]
    """By check, how much the last one compared."""
    ended: bool
    """False if the training runs, or was killed."""
    exit_code: int
    """That of the command, if it failed; otherwise 0."""
    restarts: int
    setup_s: float
    not_seen: list[str]
    notes: list[str]
    error: str
    known_bugs: list[KnownBugJson]
