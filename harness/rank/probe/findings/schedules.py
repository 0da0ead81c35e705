"""Continues a schedule of the learning rate after the steps that a probe takes.

A probe takes a few steps, and a warmup may be longer. So the schedule continues without training,
with as many calls per step as the script made. Two of its lengths are compared with the reference:
a schedule that counts micro-batches is k times too long, and a schedule that counts the steps of
all ranks is too short.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from harness.rank import events

MOST_STEPS, MOST_SECONDS = 5_000, 0.1
"""After so many steps or seconds, a schedule counts as endless."""

ENDLESS = 10
"""How many times the steps to half of its rate a schedule may take; then it counts as endless."""

SAME = 60
"""After so many steps without a new lowest rate, a schedule that has fallen counts as ended."""

HALF, LOWEST = "half of its highest rate", "its lowest rate"


class Schedules:
    """The torch schedules of a script, and their counts at each step."""

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._counts: list[list[int]] = []

    def install(self) -> None:
        """Note each schedule before it is constructed: it may construct others."""
        events.instrument.on(
            events.NewSchedule, before=lambda event: self._made.append(event.owner)
        )

    def step(self) -> None:
        """The optimizer has taken a step."""
        self._counts.append([getattr(one, "last_epoch", 0) for one in self._made])

    def lengths(self, rates: list[float]) -> dict[str, int]:
        """After how many steps the rate falls to half of its highest value, and to its lowest.

        ``rates`` has the rates of the steps so far. This advances the schedule itself: nothing may
        be trained after this.
        """
        parts = {id(part) for one in self._made for part in getattr(one, "_schedulers", ())}
        steps = len(self._counts) - 1
        for number, schedule in enumerate(self._made):
            counts = [each[number] for each in self._counts if number < len(each)]
            if id(schedule) in parts or steps < 1 or len(counts) != steps + 1:
                continue
            pace = (counts[-1] - counts[0]) / steps
            if pace <= 0:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _lengths([*rates, *_ahead(schedule, pace)])
        return {}


def _ahead(schedule: Any, pace: float) -> Iterator[float]:
    """The rates of the next steps."""
    ends = time.monotonic() + MOST_SECONDS
    with suppress(Exception):  # one cycle of OneCycleLR ends with an error
        for number in range(MOST_STEPS):
            for _ in range(int(number * pace), int((number + 1) * pace)):
                schedule.step()
            yield float(schedule.optimizer.param_groups[0]["lr"])
            if time.monotonic() > ends:
                return


def _lengths(rates: list[float]) -> dict[str, int]:
    highest = lowest = rates[0]
    half = low = since = 0
    ended = False
    for number, rate in enumerate(rates, 1):
        if rate > highest:
            highest = lowest = rate
            half = low = 0
        if rate < lowest:
            lowest, low, since = rate, number, 0
        elif low:
            since += 1
        if not half and rate <= highest / 2:
            half = number
        ended = bool(half) and (since >= SAME or rate > 2 * lowest)
        if ended or (half and number > ENDLESS * half + SAME):
            break
    return ({HALF: half} if half else {}) | ({LOWEST: low} if ended else {})
