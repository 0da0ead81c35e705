"""Several releases in a row that fail for the same reason, and the likely cause."""

from __future__ import annotations

import re

from harness.sweep.cell import Cell
from harness.upstream import pins

IN_A_ROW = 3
"""How many releases must fail alike, one after another, before a hint is given."""

COMPARED = 80
"""How many characters of two reasons are compared."""

FAULTS = re.compile("no network|does not respond|certificate was refused|no room on the disk")
"""Reasons that the next release would also fail for."""


class Streak:
    """Counts releases that fail alike before they start."""

    def __init__(self) -> None:
        self.last, self.count = "", 0

    def hint(self, cell: Cell) -> str:
        """The likely cause, after the third release that fails alike; otherwise empty."""
        # Reasons differ in the numbers of releases and in the paths of builds.
        reason = "" if cell.started else re.sub(r"\S*[\d/]\S*", "#", cell.reason)[:COMPARED]
        self.count = self.count + 1 if reason == self.last else 1
        self.last = reason
        if not reason or self.count != IN_A_ROW:
            return ""
        return f"{IN_A_ROW} releases in a row failed alike: {_likely_cause(cell.reason)}"


def _likely_cause(reason: str) -> str:
    if FAULTS.search(reason):
        return (
            "the cause is this machine or its network; results so far are stored, so run the "
            "command again once it works"
        )
    if "for Python" in reason:
        python, _ = pins.here()
        return f"they may have no wheels for Python {python}; try another Python"
    if "could not be installed" in reason:
        return "what builds or downloads them here (a compiler, a proxy) may be the cause"
    return "they may share one cause"
