"""The length of a layout's schedule of the learning rate, beside that of the reference."""

from __future__ import annotations

from collections.abc import Mapping

from harness.probe.layouts import Layout
from harness.probe.ratios import times
from harness.probe.relations import Broken
from harness.probe.schedules import HALF, LOWEST

RELATION = "schedule"

UNLIKE = 1.4
"""How many times as long a schedule is at least, if it is another one: a dataset that cannot be
divided by the rows of a step makes it a little longer or shorter."""


def schedule(here: Mapping[str, int], there: Mapping[str, int], layout: Layout) -> Broken | None:
    """Whether a layout's schedule has another length than the reference's.

    After a resume, the highest rate may have been before the stop: only the end is compared.
    """
    for what in (LOWEST,) if layout.resumed else (LOWEST, HALF):
        if not (what in here and what in there):
            continue
        longer = (here[what] + layout.first) / there[what]
        if max(longer, 1 / longer) >= UNLIKE:
            text = (
                f"the schedule falls to {what} after {here[what] + layout.first} steps, in the "
                f"reference after {there[what]}: {times(longer, layout.times, layout.k)}"
            )
            return Broken(RELATION, text, longer)
    return None
