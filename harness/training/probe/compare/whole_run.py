"""The relations of whole runs: the rows of an epoch, evaluations, and the schedule's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from harness.bugs.api.numbers import near
from harness.rank.probe.findings.saves import CUT, OTHERS, WHOLE
from harness.rank.probe.findings.schedules import HALF, LOWEST
from harness.system.text import several
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
    expected_losses = {(steps, name): loss for steps, name, loss in reference.reported[0]}
    notes = []
    for steps, name, loss in run.reported[0]:
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


Key = tuple[int, str, str]
"""After how many steps weights were saved, into which file, and where in it."""


def checkpoints(run: Run, reference: Run) -> Iterator[Broken | str]:
    """How the weights that rank 0 saves differ from the reference's. It is a fault if the trained
    ones, or the first ones, are saved in one of the two alone; an average, a teacher or the best
    weights may be any. If both scripts go on after the last step, other differences are noted."""
    if run.layout.resumed:
        return
    saves, reference_saves = (  # the last weights in each place of each file after each step
        {(steps, path, place): weights for steps, path, place, weights in one.saves}
        for one in (run, reference)
    )
    pairs = dict(_pairs(saves, reference_saves))
    for key, expected_key in pairs.items():
        weights, expected, title = saves[key], reference_saves[expected_key], _title(key)
        distances = weights["distance"], expected["distance"]
        kinds = [_kind(distance) for distance in distances]
        is_apart = abs(distances[0] - distances[1]) > APART * max(1.0, *distances)
        text = f"{title} has {kinds[0]}; that of the reference has {kinds[1]}"
        if is_apart and {TRAINED, FIRST} & {*kinds} and not OTHERS.search(" ".join(key[1:])):
            yield Broken(CHECKPOINT, text)
        elif run.layout.goes_on:
            if is_apart:
                yield text
            if key != expected_key:
                yield f"{title} is saved; by the reference, {expected_key[1]}"
            if weights["types"] != expected["types"]:
                types, expected_types = (", ".join(one["types"]) for one in (weights, expected))
                yield f"{title} is in {types}; in the reference in {expected_types}"
            for verb, side, twin in (("lacks", weights, expected), ("also has", expected, weights)):
                if names := [name for name in side["absent"] if name not in twin["absent"]]:
                    yield f"{title} {verb} {several(names)}"
    if run.layout.goes_on:
        is_cut = CUT in (run.end, reference.end)
        last_step = max((key[0] for key in (*saves, *reference_saves)), default=0)
        for keys, paired, by in (
            (reference_saves, set(pairs.values()), "by the reference alone"),
            (saves, set(pairs), "and not by the reference"),
        ):
            for key in keys:
                if key not in paired and not (is_cut and key[0] == last_step):
                    yield f"{_title(key)} is saved {by}"
        ends = [one.end.partition(":")[0] for one in (run, reference)]
        if ends[0] != ends[1] and not is_cut:
            texts = [one.end or "without an error" for one in (run, reference)]
            yield f"after its last step, it ended: {texts[0]}; the reference: {texts[1]}"


def _pairs(saves: Iterable[Key], reference_saves: Iterable[Key]) -> Iterator[tuple[Key, Key]]:
    """What was saved under the same name; and under other names, if after a step only one of each
    is left: a release may rename its file."""
    lone, reference_lone = {*saves} - {*reference_saves}, {*reference_saves} - {*saves}
    for key in saves:
        mine, others = (
            [one for one in each if one[0] == key[0]] for each in (lone, reference_lone)
        )
        if key not in lone:
            yield key, key
        elif len(mine) == len(others) == 1 and key[2] == others[0][2]:
            yield key, others[0]


def _title(key: Key) -> str:
    steps, path, place = key
    file = path or "a file"
    return f"after step {steps}, {file if place == WHOLE else f'{place} of {file}'}"


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
