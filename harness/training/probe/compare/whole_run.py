"""The relations of whole runs: the rows of an epoch, evaluations, and the schedule's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.bugs.api.numbers import near
from harness.rank.probe.saves import WHOLE
from harness.rank.probe.schedules import HALF, LOWEST
from harness.training.probe.compare.faults import Broken, several
from harness.training.probe.compare.mistakes import in_words, meaning
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run


def epoch(run: Run, reference: Run, same_rows: bool) -> Broken | None:
    """Whether all ranks together have seen the rows of the reference's epoch.

    Where the rows do not fill the last step, it may repeat rows, or be left out.
    """
    expected_rows = Counter(_rows(reference.seen[0][run.layout.first :]))
    ranks = run.seen[:1] if same_rows else run.seen
    rows = Counter(row for rank in ranks for row in _rows(rank))
    twice, never = rows - expected_rows, expected_rows - rows
    size = len(reference.seen[0][0])
    if expected_rows.total() % max(size, 1):
        twice -= Counter(row for rank in ranks for row in _rows_of_last_step(rank))
        never = never if never.total() >= size else Counter()
    if not (twice or never):
        return None
    text = (
        f"over an epoch of {expected_rows.total()} rows, {twice.total()} come too often, and "
        f"{never.total()} never"
    )
    return Broken("samples", text)


def _rows(steps: Iterable[Iterable[str]]) -> list[str]:
    return [row for step in steps for row in step]


def _rows_of_last_step(steps: list[list[str]]) -> list[str]:
    """The rows of the last step, and those after it, which no step has used."""
    return _rows(steps[-2:])


EVALUATION = "evaluation"

NEAR = 1e-2
"""How far (as a fraction) a loss may be from the reference's without a note: means of batches that
are divided otherwise differ by design."""


@dataclass(frozen=True)
class Loss:
    """A loss that rank 0 has reported in a layout."""

    steps: int
    name: str
    value: float
    expected: float
    """In the reference."""


def evaluation(run: Run, reference: Run) -> Broken | str | None:
    """The first loss of an evaluation that a known mistake multiplied; otherwise a note on the
    first one that differs."""
    losses = _losses(run, reference)
    for loss in losses:
        ratio = loss.value / loss.expected if loss.expected else 1.0
        if words := meaning(ratio, run.layout.rank_factor, run.layout.k):
            text = f"{_described(loss)}: {in_words(ratio, run.layout.rank_factor, run.layout.k)}"
            return Broken(EVALUATION, text, ratio, words)
    unlike_losses = (loss for loss in losses if not near(loss.value, loss.expected, share=NEAR))
    return next((f"evaluation: {_described(loss)}" for loss in unlike_losses), None)


def _described(loss: Loss) -> str:
    return (
        f"after step {loss.steps}, {loss.name} is {loss.value:.6g}; "
        f"the reference has {loss.expected:.6g}"
    )


def _losses(run: Run, reference: Run) -> list[Loss]:
    """The losses that both have reported, after the same step and under the same name."""
    reference_losses = {(steps, name): loss for steps, name, loss in reference.reported[0]}
    start = run.layout.first
    return [
        Loss(start + steps, name, loss, reference_losses[start + steps, name])
        for steps, name, loss in run.reported[0]
        if (start + steps, name) in reference_losses
    ]


CHECKPOINT = "checkpoint"

APART = 0.1
"""How much farther from the trained weights saved ones may be than the reference's, as a part of
the way of all steps."""


def saved(run: Run, reference: Run) -> Iterator[Broken | str]:
    """How the weights that rank 0 has saved differ from the reference's, in both of which steps
    have moved them: a fault for each that is farther from the trained ones, or nearer; otherwise
    notes, if scripts that go on after the last step are compared."""
    if run.layout.resumed:
        return
    saves, expected_saves = _saves(run), _saves(reference)
    for (steps, file, where), expected in expected_saves.items():
        others = [name for step, name, other in saves if (step, other) == (steps, where)]
        if not others:
            continue
        other_file = file if file in others else others[0]
        weights = saves[steps, other_file, where]
        name = file if where == WHOLE else f"{where} of {file}"
        if abs(weights["off"] - expected["off"]) > APART:
            yield Broken(
                CHECKPOINT,
                f"after step {steps}, {name} has {_which(weights)}; that of the reference has "
                f"{_which(expected)}",
            )
        elif run.layout.goes_on:
            yield from _other_file(steps, name, other_file, file)
            yield from _other_content(steps, name, weights, expected)
    if run.layout.goes_on:
        yield from _other_end(run, reference)


def _saves(run: Run) -> dict[tuple[int, str, str], Mapping[str, Any]]:
    """The last weights of each file after each step."""
    return {(steps, file, where): weights for steps, file, where, weights in run.saved}


def _which(weights: Mapping[str, Any]) -> str:
    off = weights["off"]
    if off < APART / 2:
        return "the trained weights"
    if abs(off - 1) < APART / 2:
        return "the first weights"
    return f"weights that are {off:.0%} of the way of all steps from the trained ones"


def _other_file(steps: int, name: str, file: str, expected: str) -> Iterator[str]:
    if file != expected:
        yield f"after step {steps}, what the reference saves as {name} is in {file}"


def _other_content(
    steps: int, name: str, weights: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[str]:
    if weights["types"] != expected["types"]:
        types, expected_types = (", ".join(one["types"]) for one in (weights, expected))
        yield f"after step {steps}, {name} is in {types}; in the reference in {expected_types}"
    for verb, more, less in (("lacks", weights, expected), ("also has", expected, weights)):
        if names := [name for name in more["lacks"] if name not in less["lacks"]]:
            yield f"after step {steps}, {name} {verb} {several(names)}"


def _other_end(run: Run, reference: Run) -> Iterator[str]:
    """Steps after which only one of the two saves trained weights, and other ends."""
    steps, expected_steps = ({entry[0] for entry in each.saved} for each in (run, reference))
    for step in sorted(expected_steps - steps):
        yield f"it saves no trained weights after step {step}; the reference does"
    for step in sorted(steps - expected_steps):
        yield f"it saves trained weights after step {step}; the reference does not"
    if run.end != reference.end:
        end, expected_end = (each.end or "without an error" for each in (run, reference))
        yield f"after its last step, it ended: {end}; the reference: {expected_end}"


SCHEDULE = "schedule"

UNLIKE = 1.4
"""The least ratio of the lengths of two schedules that are not the same: a dataset that cannot be
divided by the rows of a step makes one a little longer or shorter."""


def schedule(
    falls: Mapping[str, int], reference_falls: Mapping[str, int], layout: Layout
) -> Broken | None:
    """Whether a layout's schedule has another length than the reference's.

    After a resume, the highest rate may have been before the stop: only the end is compared.
    """
    for level in (LOWEST,) if layout.resumed else (LOWEST, HALF):
        if not (level in falls and level in reference_falls):
            continue
        longer = (falls[level] + layout.first) / reference_falls[level]
        if max(longer, 1 / longer) >= UNLIKE:
            factor = in_words(longer, layout.rank_factor, layout.k)
            text = (
                f"the schedule falls to {level} after {falls[level] + layout.first} steps, in the "
                f"reference after {reference_falls[level]}: {factor}"
            )
            return Broken(SCHEDULE, text, longer)
    return None
