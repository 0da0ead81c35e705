"""The relations of whole runs: the rows of an epoch, evaluations, and the schedule's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from harness.bugs.api.numbers import near
from harness.rank.probe.findings.saves import OTHERS, WHOLE
from harness.rank.probe.findings.schedules import HALF, LOWEST
from harness.training.probe.compare.faults import Broken, in_words, meaning
from harness.training.probe.layouts import Layout
from harness.training.probe.runner import Run


def epoch(run: Run, reference: Run, same_rows: bool) -> Iterator[Broken]:
    """Whether all ranks together have seen the rows of the reference's epoch.

    Where the rows do not fill the last step, it may repeat rows, or be left out.
    """
    expected_rows = Counter(chain(*reference.seen[0][run.layout.first :]))
    ranks = run.seen[:1] if same_rows else run.seen
    rows = Counter(row for rank in ranks for row in chain(*rank))
    twice, never = rows - expected_rows, expected_rows - rows
    size = len(reference.seen[0][0])
    if expected_rows.total() % max(size, 1):
        # Those of the last step, and those after it, which no step has used.
        twice -= Counter(row for rank in ranks for row in chain(*rank[-2:]))
        never = never if never.total() >= size else Counter()
    if twice or never:
        yield Broken(
            "samples",
            f"over an epoch of {expected_rows.total()} rows, {twice.total()} come too often, and "
            f"{never.total()} never",
        )


EVALUATION = "evaluation"

NEAR = 1e-2
"""How far (as a fraction) a loss may be from the reference's without a note: means of batches that
are divided otherwise differ by design."""


def evaluation(run: Run, reference: Run) -> Iterator[Broken | str]:
    """The first loss of an evaluation that a known mistake multiplied; otherwise a note on the
    first one that differs. Only losses that both have reported, after the same step and under the
    same name, are compared."""
    expected_losses = {(steps, name): loss for steps, name, loss in reference.reported}
    notes = []
    for steps, name, loss in run.reported:
        steps += run.layout.first
        if (expected := expected_losses.get((steps, name))) is None:
            continue
        text = f"after step {steps}, {name} is {loss:.6g}; the reference has {expected:.6g}"
        ratio = loss / expected if expected else 1.0
        if words := meaning(ratio, run.layout.rank_factor, run.layout.k):
            yield Broken(EVALUATION, f"{text}: {in_words(ratio, words)}", ratio, words)
            return
        if not near(loss, expected, share=NEAR):
            notes.append(f"evaluation: {text}")
    yield from notes[:1]


CHECKPOINT = "checkpoint"

APART = 0.1
"""How much farther from the trained weights saved ones may be than the reference's, or how much
nearer, as a part of the way of all steps."""


TRAINED, FIRST = "the trained weights", "the first weights"


def checkpoints(run: Run, reference: Run) -> Iterator[Broken]:
    """Whether rank 0 saves the trained weights, or the first ones, where the reference does not. An
    average, a teacher or the best weights may be any."""
    if run.layout.resumed:
        return
    saves, reference_saves = (  # the last weights in each place of each file after each step
        {(steps, path, place): distance for steps, path, place, distance in one.saves}
        for one in (run, reference)
    )
    for (steps, path, place), distance in saves.items():
        expected = reference_saves.get((steps, path, place), distance)
        kinds = [_kind(distance), _kind(expected)]
        is_apart = abs(distance - expected) > APART * max(1.0, distance, expected)
        if is_apart and {TRAINED, FIRST} & {*kinds} and not OTHERS.search(f"{path} {place}"):
            file = path or "a file"
            title = f"after step {steps}, {file if place == WHOLE else f'{place} of {file}'}"
            text = f"{title} has {kinds[0]}; that of the reference has {kinds[1]}"
            yield Broken(CHECKPOINT, text)


def _kind(distance: float) -> str:
    if distance < APART / 2:
        return TRAINED
    if abs(distance - 1) < APART / 2:
        return FIRST
    return f"weights that are {distance:.0%} of the way of all steps from the trained ones"


SCHEDULE = "schedule"

UNLIKE = 1.4
"""The least ratio of the lengths of two schedules that are not the same: a dataset that cannot be
divided by the rows of a step makes one a little longer or shorter."""


def schedule(
    falls: Mapping[str, int], reference_falls: Mapping[str, int], layout: Layout
) -> Iterator[Broken]:
    """Whether a layout's schedule has another length than the reference's.

    After a resume, the highest rate may have been before the stop: only the end is compared.
    """
    for level in (LOWEST,) if layout.resumed else (LOWEST, HALF):
        if not (level in falls and level in reference_falls):
            continue
        longer = (falls[level] + layout.first) / reference_falls[level]
        if max(longer, 1 / longer) >= UNLIKE:
            factor = in_words(longer, meaning(longer, layout.rank_factor, layout.k))
            text = (
                f"the schedule falls to {level} after {falls[level] + layout.first} steps, in the "
                f"reference after {reference_falls[level]}: {factor}"
            )
            yield Broken(SCHEDULE, text, longer)
            return
