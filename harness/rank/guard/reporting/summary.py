"""The summary of a training so far, which rank 0 writes again and again: it may be killed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..checks.common_rows import NAME as COMMON_ROWS
from ..checks.views import Memory
from ..posting.budget import FIRST_CHECKS, LEAST_SECONDS, LEAST_STEPS, Cost
from ..sampling.optimizers import MOMENTS
from ..sentences import steps_in_words
from ..trainings.training import Training
from .report import Report

UNCOUNTED = {
    "": "guard did not see them",
    "none": "they come from other functions than torch's, or from a compiled model",
    "several": "each is made of several, and how much each should count is the loop's choice",
    "separate": "several of them belong to one batch",
    "terms": "they have other terms",
}
"""Why losses are not counted."""

PERIOD = 30.0
"""Seconds between two summaries of a training that runs."""


class Clock:
    """When the summary is to be written: after each of the first checks, with each new fault, and
    otherwise once in a period."""

    def __init__(self) -> None:
        self._last = 0.0
        self._faults = 0

    def is_due(self, checks: int, faults: int) -> bool:
        """Whether to write it now, after so many checks with so many faults."""
        seconds = time.monotonic()
        is_due = checks <= FIRST_CHECKS or faults > self._faults or seconds - self._last >= PERIOD
        if is_due:
            self._last, self._faults = seconds, faults
        return is_due


def percent(cost: Cost) -> float:
    """The part of the time that the checks have taken."""
    return 100 * (cost.spent + cost.thread) / cost.elapsed if cost.elapsed else 0.0


def not_seen(
    trainings: Iterable[Training], memories: Iterable[Memory], optimizers: int, most: int
) -> list[str]:
    """What is not compared in this training, a sentence for each reason. ``optimizers`` were
    constructed, ``most`` of which are checked."""
    trainings = list(trainings)
    sentences = [text for memory in memories for text in memory.not_seen.values()]
    sentences += [
        f"optimizer {one.number} is not checked: it steps too seldom"
        for one in trainings
        if one.turn.is_left_out
    ]
    if names := sorted({name for one in trainings for name in one.model.copies}):
        sentences.append(
            f"copies of the model that no optimizer has, such as averages ({', '.join(names)}): "
            "whether the loop updates them, and what a save and a load make of them"
        )
    if optimizers > most == len(trainings):
        sentences.append(f"only {most} of {optimizers} optimizers are checked")
    return sentences


def too_often(every: int, left_out: int) -> str:
    """What ``--every`` asked for and was not done."""
    checks = "check" if left_out == 1 else "checks"
    return (
        f"{left_out} {checks} of --every {every}: ranks agree on the next one, which takes them "
        f"{LEAST_STEPS + 1} steps and {LEAST_SECONDS} s"
    )


def uncounted(memories: Iterable[Memory]) -> str:
    """Why losses are not counted, as the last check that says so."""
    return next(filter(None, (one.losses.uncounted for one in reversed([*memories]))), "")


def blind(
    compared: Mapping[str, int], facts: Mapping[str, Any], has_rows: bool, uncounted: str = ""
) -> dict[str, str]:
    """The checks that compare nothing in this training, each with the reason. ``compared`` says of
    how much they have compared, and ``uncounted`` why losses are not counted."""
    settings = facts.get("settings", {})
    ranks, optimizer = settings.get("ranks", 1), settings.get("optimizer", "")
    sentences = {}
    if ranks == 1:
        sentences["replicas"] = "nothing is compared between ranks: there is one"
    elif not compared.get("replicas"):
        sentences["replicas"] = "weights are not compared: no two ranks have copies of one"
    if optimizer and optimizer not in MOMENTS:
        sentences["updates"] = (
            f"how far a step moves weights, and whether it does: {optimizer} has no known formula"
        )
    if "accumulation" not in compared:
        sentences["accumulation"] = f"losses are not counted: {UNCOUNTED[uncounted]}"
    if not has_rows:
        sentences["samples"] = "rows are not compared: no DataLoader of torch gave them"
    elif ranks > 1 and "samples" not in compared:
        sentences["samples"] = (
            "rows are not compared: they were read before the steps, or by two loaders"
        )
    if "samples" in sentences and compared.get(COMMON_ROWS):
        sentences["samples"] += ". Only gradients show if all ranks have the same rows"
    return sentences


def merged(memories: Iterable[Memory]) -> dict[str, int]:
    """By check, how much it has compared, of all optimizers."""
    return {name: number for memory in memories for name, number in memory.compared.items()}


def line(steps: int, report: Report, cost: Cost, restarts: int = 0) -> str:
    """The training in one line."""
    faults = len(report.faults)
    return (
        f"{steps_in_words(steps, restarts)}, {report.checks} checked; "
        f"cost {percent(cost):.2f} % of the time ({1000 * cost.each:.1f} ms a check); "
        + (f"{faults} fault{'s' if faults > 1 else ''}" if faults else "no alarm")
    )


def content(
    steps: int,
    report: Report,
    cost: Cost,
    memories: Sequence[Memory],
    facts: Mapping[str, Any],
    **others: Any,
) -> dict[str, Any]:
    """The summary as JSON: it does not grow with the length of a training."""
    return {
        "steps": steps,
        "checks": report.checks,
        "checked": report.steps,
        "cost_percent": percent(cost),
        "check_ms": 1000 * cost.each,
        "faults": [fault.to_json() for fault in report.faults.values()],
        "compared": merged(memories),
        **others,
        **facts,
        "known_bugs": report.bugs,
    }
