"""What a probe notes beside its comparisons, and what it did not test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.bugs.api.spec import Lane
from harness.rank.probe.findings import unlike
from harness.rank.probe.recording import losses
from harness.system.text import count, several
from harness.training.probe.answers import Answers
from harness.training.probe.compare import plausibility
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.reference import Reference
from harness.training.probe.compare.whole_run import SCHEDULE
from harness.training.probe.layouts import (
    ACCUMULATION,
    BOTH,
    CHECKPOINTING,
    COMPILE,
    RANKS,
    RANKS_RESUME,
    RESUME,
    SEED,
    Settings,
)
from harness.training.probe.runner import Run


def relevant(notes: Iterable[str], layouts: Iterable[Compared]) -> list[str]:
    """The notes. unlike.SCHEDULE stays only if a layout on several ranks has another learning rate:
    accelerate may step a constant schedule as often as it likes."""
    has_other_rates = any(
        one.relation in ("learning rate", SCHEDULE)
        for comparison in layouts
        for one in comparison.broken
        if comparison.layout.world > 1
    )
    return [note for note in notes if has_other_rates or note != unlike.SCHEDULE]


NUMBERS = re.compile(r"-?\d[\d.]*(e-?\d+)?%?")


def without_numbers(note: str) -> str:
    """A note with # for each number: its kind."""
    return NUMBERS.sub("#", note)


def remarks(run: Run) -> Iterator[str]:
    """What the ranks themselves have noted."""
    yield from (note for steps in run.ranks for step in steps[:1] for note in step.remarks)


ON_ALL_RANKS = "dropout draws the same numbers on all ranks, for unlike rows"


def notes_on_run(run: Run, baseline: Reference) -> Iterator[str]:
    """Notes on what is not wrong by itself."""
    if run.failure:
        return
    drops = [steps[0].drops for steps in run.ranks]
    rows = [steps[0].rows for steps in run.ranks]
    if len(drops) > 1 and drops[0] and drops[0] == drops[1] and rows[0] != rows[1]:
        yield ON_ALL_RANKS
    if run.layout.resumed and run.layout.first < len(baseline.steps):
        before = baseline.steps[run.layout.first].drops
        if before and drops[0] != before:
            yield "after the resume, dropout draws other numbers than without the stop"


def notes_on_reference(baseline: Reference, perturbed: list[Run]) -> Iterator[str]:
    """Notes on the reference, which all layouts are compared with."""
    yield from baseline.steps[0].unlike
    yield from plausibility.notes_on_steps(baseline.steps)
    if shims := baseline.steps[0].shims:
        yield f"on a CPU these releases need shims of ours: {', '.join(shims)}"
    if loss_note := losses.note_on_loss(baseline.steps[0].own):
        yield loss_note
    if baseline.steps[0].shifted:
        yield losses.SHIFTED
    if baseline.steps[0].endless:
        yield losses.ENDLESS
    if any(run.failure for run in perturbed):
        yield "a perturbed reference run gave no answer: tolerances may be too small"
    if baseline.steps[0].stale:
        yield "the reference begins with gradients: something was differentiated before its loop"
    if any(step.stale for step in baseline.steps[1:]):
        yield "the reference itself has gradients left from the step before: is zero_grad missing?"


COMMON = "faults that every layout has, as all are compared with the reference"
NO_DROPOUT = "dropout (switched off while probing)"
DROPOUT_IN_MODES = "dropout on several ranks or micro-batches (switched off there)"


def not_tested(
    settings: Settings, lane: Lane, reference_run: Run, baseline: Reference, answers: Answers
) -> Iterator[str]:
    """What the probe did not test."""
    kinds = {found.layout.kind for found in answers.layouts if not found.no_answer}
    names = {
        RANKS: "several ranks",
        ACCUMULATION: "accumulated micro-batches",
        BOTH: "ranks together with micro-batches",
        RESUME: "stop and resume",
        SEED: "the order of samples with another seed",
        RANKS_RESUME: "stop and resume on several ranks (--layouts ranks-resume)",
        COMPILE: "with and without torch.compile (--layouts compile)",
        CHECKPOINTING: "with and without recomputation (--layouts checkpointing)",
    }
    for kind, name in names.items():
        if why := answers.unanswered.get(kind):
            yield f"{name.partition(' (')[0]}: {why}"
        elif kind not in kinds:
            how = " (needs --save and --resume)" if kind == RESUME and settings.save is None else ""
            how = " (needs --other-seed)" if kind == SEED and not settings.other_seed else how
            yield name + how
    yield from (what for found in answers.layouts for what in found.not_tested)
    copies = baseline.steps[-1].copies
    averages = dict.fromkeys(copy["holder"] for copy in copies if copy["is_average"])
    if averages and not kinds & {RESUME, RANKS_RESUME}:
        yield f"averages of the weights ({several(averages)}): needs a stop and resume"
    if baseline.steps[0].own is None:
        yield "the size of the reference's own gradient: no logits and labels were seen"
    if baseline.steps[0].stops:
        yield "whether the loss falls as its gradient says: the loop stops gradients on purpose"
    if not any(baseline.steps[0].rows):
        yield "samples: no module with parameters was called with them"
    elif not settings.epoch:
        yield "rows that come twice or never later in an epoch (needs --epoch)"
    if not reference_run.reported:
        yield "evaluation: no loss of one was reported"
    if dead := baseline.dead:
        yield f"{count(len(dead), 'parameter')} whose gradient is always 0: {several(dead)}"
    if answers.decided < 0.99:
        yield (
            f"updates of {1 - answers.decided:.0%} of the values, whose gradients are hardly more "
            "than rounding"
        )
    yield COMMON
    has_dropout = any(found.with_dropout for found in answers.layouts)
    yield DROPOUT_IN_MODES if has_dropout else NO_DROPOUT
    if lane is Lane.CPU:
        yield "collectives of GPUs (needs --launch gpu)"
