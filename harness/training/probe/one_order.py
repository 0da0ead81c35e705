"""Compares a layout with the reference; again with every sampler in one order, if only the order of
its rows differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.training.probe.compare.comparison import Compared, compare
from harness.training.probe.compare.reference import Reference, as_one, rows_of, without_cleared
from harness.training.probe.compare.rows import all_alike, rows_again, same_epochs
from harness.training.probe.layouts import AGAINST, Layout, Settings, base_layout, rounding
from harness.training.probe.runner import Run, Runner


def run_as_one(runner: Runner, settings: Settings, layout: Layout) -> Run:
    """A run of the reference, as if it had one rank."""
    return as_one(runner.start(layout).result(), settings.same_rows)


def compare_layout(
    runner: Runner, settings: Settings, run: Run, baseline: Reference, of_layout: Runner
) -> Compared:
    """Compare a layout; again with every sampler in one order, if only its order differs. Then the
    reference runs with ``runner``, and the layout with ``of_layout``."""
    comparison = compare(run, baseline, settings.same_rows)
    if not comparison.has_other_samples or run.layout.resumed:
        return comparison
    if micro_batches := _micro_batches_of_its_own(runner, settings, run, baseline):
        why = NO_K.format(own=f"{micro_batches} micro-batch" + ("" if micro_batches == 1 else "es"))
        return _unanswered(comparison, why)
    if _packs(settings, run, baseline):
        return _unanswered(comparison, PACKED)
    again = ("" if settings.same_rows else all_alike(run)) or rows_again(run, baseline)
    if again := again or same_epochs(run, baseline):
        cause = comparison.broken[0]
        comparison.broken[0] = replace(cause, details=(again, *cause.details))
        return comparison
    ordered = _in_one_order(runner, settings, run.layout, of_layout)
    if ordered is None or ordered.no_answer or ordered.has_other_samples:
        return _without_an_answer(comparison, run, baseline, ordered)
    ordered.layout = run.layout
    ordered.notes.append(
        f"draws another order than the reference ({comparison.broken[0].text}); none comes twice. "
        "It was compared again, with every sampler in one order"
    )
    return ordered


NO_K = (
    "each step came after {own}, as in the reference, and the command has no {{k}}: give it the "
    "script's number of micro-batches, or use --layouts ranks"
)


def _micro_batches_of_its_own(
    runner: Runner, settings: Settings, run: Run, baseline: Reference
) -> int:
    """The script's own number of micro-batches per step, if the command does not set one and the
    reference has the same number; otherwise 0."""
    if run.layout.k == 1 or runner.target.names_micro_batches:
        return 0
    together = 1 if settings.same_rows else settings.reference_ranks
    counts = {len(step["rows"]) for steps in run.ranks for step in steps}
    in_reference = {len(step["rows"]) // together for step in baseline.steps}
    return counts.pop() if len(counts) == 1 and counts == in_reference else 0


PACKED = (
    "each micro-batch is one row, in the reference, too: is it packed of several? Unless "
    "position_ids begin again for each, these depend on each other, and probe does not see them. "
    "Nothing can be compared: switch packing off"
)


def _packs(settings: Settings, run: Run, baseline: Reference) -> bool:
    """Whether all micro-batches have one row, though the script was told to read several."""
    steps = [step for steps in (baseline.steps, *run.ranks) for step in steps]
    return settings.rows > settings.reference_ranks and all(
        len(micro) == 1 for step in steps for micro in step["rows"]
    )


FEW = (
    "with every sampler in one order, {few} of {all} rows of step {step} are other ones: a row "
    "seems to depend on the others in its micro-batch, as where the longest one is cut. Nothing "
    "can be compared: make each row independent of the others"
)


IN_ONE_ORDER = (
    ", also with every sampler in one order. None comes twice, but nothing can be compared"
)
ELSEWHERE = f"reads the rows in another order than the reference{IN_ONE_ORDER}"
OTHER = (
    "draws other rows than the reference, or changes them at random (masks, noise, crops)"
    f"{IN_ONE_ORDER}"
)

OTHER_ROWS = (
    "also with every sampler in one order, the model is given other rows than in the first "
    "environment: other tokens, another template or cut, or changes at random (masks, noise, "
    "crops). Nothing can be compared"
)


def _few(ordered: Compared | None) -> str:
    """The reason for no answer if most rows are the reference's once all samplers draw in one
    order; empty if not."""
    if ordered is None or ordered.moment is None or not ordered.has_other_samples:
        return ""
    expected = Counter(rows_of(ordered.moment.expected))
    missing = expected - Counter(row for one in ordered.moment.ranks for row in rows_of(one))
    few, all_ = missing.total(), expected.total()
    return FEW.format(few=few, all=all_, step=ordered.step) if 2 * few < all_ else ""


def _has_rows_elsewhere(ordered: Compared | None) -> bool:
    """Whether a step has rows that the reference has in another step: they are not changed."""
    if ordered is None or ordered.moment is None:
        return False
    rows = {row for one in ordered.moment.ranks for row in rows_of(one)}
    steps = ordered.moment.reference.steps
    return any(
        number != ordered.moment.number and not rows.isdisjoint(rows_of(step))
        for number, step in enumerate(steps)
    )


def _without_an_answer(
    comparison: Compared, run: Run, baseline: Reference, ordered: Compared | None
) -> Compared:
    """Report no answer, and no fault, if the layout has as many rows as the reference, none of them
    twice: the script shuffles by itself, or draws at random."""
    for number, step in enumerate(baseline.steps[: run.steps]):
        row_count = sum(len(micro) for one in run.ranks for micro in one[number]["rows"])
        if row_count != sum(map(len, step["rows"])):
            return comparison
    is_moved = _has_rows_elsewhere(ordered)
    is_other = comparison.layout.kind == AGAINST and not is_moved
    if why := _few(ordered) or (OTHER_ROWS if is_other else ""):
        return _unanswered(comparison, why)
    if run.layout.world > 1 and not all(one[0]["seeded"] for one in run.ranks):
        advice = "the script sets no seed, so each rank draws or splits by itself"
    elif run.layout.world == 1 and any(step["evaluated"] for step in run.ranks[0]):
        advice = "does an evaluation draw rows from the same generator?"
    elif is_moved:
        advice = "let it read them in one order, however many ranks there are"
    else:
        advice = "switch that off, or make it depend on the row"
    return _unanswered(comparison, f"{ELSEWHERE if is_moved else OTHER}: {advice}")


def _unanswered(comparison: Compared, why: str) -> Compared:
    comparison.no_answer, comparison.broken, comparison.step = why, [], None
    return comparison


def _in_one_order(
    runner: Runner, settings: Settings, layout: Layout, of_layout: Runner
) -> Compared | None:
    """Compare a layout and a reference whose samplers draw in one order; None if that fails."""
    base = _ordered(base_layout(settings))
    layouts = [base, *rounding(base)]
    for ordered_layout in layouts:
        runner.start(ordered_layout)
    run_of_layout = of_layout.start(_ordered(layout))
    reference_run, *perturbed = (
        run_as_one(runner, settings, ordered_layout) for ordered_layout in layouts
    )
    baseline = Reference.of(reference_run, perturbed)
    run = without_cleared(run_of_layout.result(), baseline.steps if reference_run.ranks else ())
    if reference_run.failure:
        return None
    return compare(run, baseline, settings.same_rows)


def _ordered(layout: Layout) -> Layout:
    name = f"{layout.name}, in one order"
    return replace(layout, name=name, one_order=True)
