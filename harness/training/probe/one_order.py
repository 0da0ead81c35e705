"""Compares a layout with the reference; again with every sampler in one order, if only the order of
its rows differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.training.probe.compare.comparison import Compared, compare
from harness.training.probe.compare.plausibility import same_order
from harness.training.probe.compare.reference import Reference, rows_of, without_cleared
from harness.training.probe.layouts import AGAINST, Layout, reference, rounding
from harness.training.probe.runner import Run
from harness.training.probe.session import Session

ALIKE = (
    "all ranks are given the same rows: is a distributed sampler missing? Tensor parallelism needs "
    "--same-rows"
)

NO_K = (
    "each step came after {} micro-batches, as in the reference, and the command has no {{k}}: "
    "give it the script's number of micro-batches, or use --layouts ranks"
)

PACKED = (
    "each micro-batch is one row, in the reference, too: is it packed of several? Unless "
    "position_ids begin again for each, these depend on each other, and probe does not see them. "
    "Nothing can be compared: switch packing off"
)

FEW = (
    "with every sampler in one order, {few} of {all} rows of step {step} are other ones: a row "
    "seems to depend on the others in its micro-batch, as where the longest one is cut. Nothing "
    "can be compared: make each row independent of the others"
)

OTHER = (
    "{text}, also with every sampler in one order. None comes twice, but nothing can be compared: "
    "{advice}"
)


def compare_layout(session: Session, run: Run, baseline: Reference) -> Compared:
    """Compare a layout; again with every sampler in one order, if only its order differs."""
    comparison = compare(run, baseline, session.settings.same_rows)
    if not comparison.has_other_samples or run.layout.resumed:
        return comparison
    if why := _why_incomparable(session, run, baseline):
        return _unanswered(comparison, why)
    if again := _repetition(session, run, baseline):
        cause = comparison.broken[0]
        comparison.broken[0] = replace(cause, details=(again, *cause.details))
        return comparison
    ordered = _in_one_order(session, run.layout)
    if ordered is None or ordered.no_answer or ordered.has_other_samples:
        return _without_an_answer(comparison, run, baseline, ordered)
    ordered.layout = run.layout
    ordered.notes.append(
        f"draws another order than the reference ({comparison.broken[0].text}); none comes twice. "
        "It was compared again, with every sampler in one order"
    )
    return ordered


def _why_incomparable(session: Session, run: Run, baseline: Reference) -> str:
    """Why rows say nothing: the script has its own number of micro-batches, which the command does
    not set and the reference has, too; or each micro-batch is packed into one row. Empty if they
    do."""
    settings, steps = session.settings, [step for steps in run.ranks for step in steps]
    if run.layout.k > 1 and not session.runner.target.names_micro_batches:
        together = 1 if settings.same_rows else settings.reference_ranks
        counts = {len(step.rows) for step in steps}
        in_reference = {len(step.rows) // together for step in baseline.steps}
        if len(counts) == 1 and counts == in_reference and counts != {0}:
            return NO_K.format(*counts)
    sizes = {len(micro) for step in (*baseline.steps, *steps) for micro in step.rows}
    return PACKED if settings.rows > settings.reference_ranks and sizes <= {1} else ""


def _repetition(session: Session, run: Run, baseline: Reference) -> str:
    """How a layout repeats rows: on all ranks, in the first epoch of the reference, or in a second
    epoch like the first, if the reference's is not so, too. Empty if it does not."""
    rows, *others = ([] if session.settings.same_rows else one[0].rows for one in run.ranks)
    if any(rows) and others and all(other == rows for other in others):
        return ALIKE
    steps = _steps_of_one_epoch(baseline)
    all_rows = [row for one in run.ranks for step in one[:steps] for row in rows_of(step)]
    if twice := len(all_rows) - len(set(all_rows)):
        return f"in {steps} steps {twice} of {len(all_rows)} rows come again"
    epochs = ([rows_of(step) for step in each] for each in (run.ranks[0], baseline.steps))
    note, reference_note = (next(same_order(each), "") for each in epochs)
    return "" if reference_note else note


def _steps_of_one_epoch(baseline: Reference) -> int:
    """The steps of the reference's first epoch without the last one: there, samplers repeat rows on
    purpose."""
    earlier_rows: set[str] = set()
    for number, step in enumerate(baseline.steps):
        rows = rows_of(step)
        if earlier_rows & set(rows) or len(set(rows)) < len(rows):
            return max(number - 1, 0)
        earlier_rows |= set(rows)
    return len(baseline.steps)


def _in_one_order(session: Session, layout: Layout) -> Compared | None:
    """Compare a layout and a reference whose samplers draw in one order; None if that fails."""
    base, ordered_layout = (
        replace(each, name=f"{each.name}, in one order", one_order=True)
        for each in (reference(session.settings), layout)
    )
    session.start(base, *rounding(base), ordered_layout)
    reference_run, *perturbed = map(session.run_as_one, (base, *rounding(base)))
    if reference_run.failure:
        return None
    baseline = Reference.of(reference_run, perturbed)
    run = without_cleared(session.run(ordered_layout), baseline.steps)
    return compare(run, baseline, session.settings.same_rows)


def _without_an_answer(
    comparison: Compared, run: Run, baseline: Reference, ordered: Compared | None
) -> Compared:
    """Report no answer, and no fault, if the layout has as many rows as the reference, none of them
    twice: the script shuffles by itself, or draws at random."""
    for number, step in enumerate(baseline.steps[: run.steps]):
        if sum(len(rows_of(one[number])) for one in run.ranks) != len(rows_of(step)):
            return comparison
    is_moved = False
    if ordered is not None and (moment := ordered.moment) is not None:
        expected = Counter(rows_of(moment.expected))
        rows = Counter(row for one in moment.ranks for row in rows_of(one))
        few = (expected - rows).total()
        if ordered.has_other_samples and 2 * few < expected.total():
            why = FEW.format(few=few, all=expected.total(), step=ordered.step)
            return _unanswered(comparison, why)
        # A row that the reference has in another step is not changed.
        is_moved = any(
            number != moment.number and not rows.keys().isdisjoint(rows_of(step))
            for number, step in enumerate(moment.reference.steps)
        )
    text = "draws other rows than the reference, or changes them at random (masks, noise, crops)"
    advice = "switch that off, or make it depend on the row"
    if is_moved:
        text = "reads the rows in another order than the reference"
        advice = "let it read them in one order, however many ranks there are"
    elif comparison.layout.kind == AGAINST:
        text = "the model is given other rows than in the first environment"
        advice = "other tokens, another template or cut, or changes at random"
    if run.layout.world > 1 and not all(one[0].seeded for one in run.ranks):
        advice = "the script sets no seed, so each rank draws or splits by itself"
    elif run.layout.world == 1 and any(step.evaluated for step in run.ranks[0]):
        advice = "does an evaluation draw rows from the same generator?"
    return _unanswered(comparison, OTHER.format(text=text, advice=advice))


def _unanswered(comparison: Compared, why: str) -> Compared:
    comparison.no_answer, comparison.broken, comparison.step = why, [], None
    return comparison
