"""Recorded results that are run again: which are due, and how a new result differs from its record.

Nothing else notices when a recorded result stops being true: a shim, a scenario or the harness
changes, and the releases that it breaks are old ones, which nobody runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.api.numbers import near
from harness.ranges import affected
from harness.sweep.cell import Cell, Status

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SHARE, WITHIN = 0.25, 1e-3
"""How much a number of a reason may differ: by a share of itself, or by so much. In half precision
some figures depend on the processor: scores overflow at step 89 on one, at step 93 on another."""

RANK = re.compile(r"\brank \d+ failed first")
UNINSTALLABLE = "could not be installed"
"""What follows is uv's, and changes with its release and with the index."""


@dataclass(frozen=True)
class Recorded:
    """A recorded result, and the day (ISO) on which it was last seen to be true."""

    cell: Cell
    day: str

    @property
    def key(self) -> tuple[str, str]:
        """The scenario, and the releases as JSON."""
        return self.cell.scenario, json.dumps(dict(self.cell.pins), sort_keys=True)


@dataclass(frozen=True)
class Confirmation:
    """A recorded result, and that of the same releases today."""

    recorded: Cell
    found: Cell

    @property
    def difference(self) -> str:
        """How today's result differs; empty if it does not."""
        before, now = self.recorded, self.found
        if now.status is not before.status:
            return f"{now.status}, recorded as {before.status}"
        if now.status is not Status.UNSUPPORTED and not _alike(_reason(now), _reason(before)):
            return f"{now.status} as recorded, but for another reason"
        return ""


def recorded(names: Iterable[str], environment: tuple[str, ...]) -> list[Recorded]:
    """The recorded results of scenarios that were found in an environment like this one, see
    ``Cell.environment``; in another one the status may differ."""
    return [
        found
        for name in names
        for cell in affected.of(name)
        if (found := Recorded(cell, cell.last_seen)).cell.environment == environment
    ]


def due(
    of: Iterable[Recorded], day: str, count: int, seen: Mapping[tuple[str, str], str] | None = None
) -> list[Recorded]:
    """The results to run again on a day (ISO), those first that were confirmed longest ago.

    Every machine chooses the same ones on the same day. ``seen`` has later days, by ``key``. They
    are returned by releases, since those of one release share an overlay.
    """
    later = seen or {}

    def order(one: Recorded) -> tuple[str, str]:
        text = "\n".join([day, *one.key])
        confirmed = max(one.day, later.get(one.key, ""))
        return confirmed, hashlib.sha256(text.encode()).hexdigest()

    return sorted(sorted(of, key=order)[:count], key=lambda one: one.key[::-1])


def _reason(cell: Cell) -> str:
    """A reason without what differs between two runs of the same code."""
    text = affected.reason(cell).partition(UNINSTALLABLE)
    return RANK.sub("a rank failed first", "".join(text[:2]))


def _alike(one: str, other: str) -> bool:
    """Whether two texts have the same words, and numbers that are nearly equal."""
    if NUMBER.split(one) != NUMBER.split(other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(near(float(a), float(b), share=SHARE, within=WITHIN) for a, b in pairs)
