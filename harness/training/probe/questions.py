"""The order of a probe: run the reference and all layouts, compare them, and add notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from harness.rank.compare import without_warnings
from harness.training.probe import modes, slopes
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared, compare, refuse_unusable
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.reference import Reference, as_one, without_cleared
from harness.training.probe.compare.whole_run import checkpoints, epoch, evaluation, schedule
from harness.training.probe.layouts import (
    AGAINST,
    MODES,
    RANKS_RESUME,
    SAMPLES,
    SEED,
    Settings,
    compared,
    reference,
    rounding,
    without_a_stop,
)
from harness.training.probe.notes import (
    not_tested,
    notes_on_reference,
    notes_on_run,
    relevant,
    remarks,
)
from harness.training.probe.one_order import compare_layout
from harness.training.probe.other_environment import compare_again, notes_on_other, of_other_alone
from harness.training.probe.runner import Run, Runner, ScriptFacts
from harness.training.probe.session import Session
from harness.training.probe.where.locate import locate

ORDER = "order of samples"

LEAST_DECIDED = 1e-3
"""The share of the values whose gradients must be more than rounding in the first step."""

VAIN = (
    "hardly a gradient of the reference is more than rounding, so nothing can be compared: are "
    "all its rows equal?"
)


@without_warnings
def probe(
    runner: Runner,
    settings: Settings,
    report: Callable[[Compared], None] = lambda _: None,
    other: Runner | None = None,
) -> Answers:
    """Run everything and compare it; ``report`` is called with each layout, as soon as it is
    compared. ``other`` runs the script in the other environment, if there is one. Raises
    Inconclusive if the reference gives no answer."""
    session = Session(runner, other)
    base, layouts = reference(settings), compared(settings)
    session.start(base, *rounding(base), *layouts)
    ranks = session.run(base)
    reference_run = as_one(ranks, settings.same_rows)
    refuse_unusable(reference_run)
    perturbed = [*map(session.run_as_one, rounding(base))]
    baseline = Reference.of(reference_run, perturbed)
    undecided = baseline.decided(0) < LEAST_DECIDED
    is_sloped = not undecided and slopes.same_gradients(ranks)
    ends = slopes.ends_of_slope(settings, baseline) if is_sloped else []
    session.start(*ends)
    step = baseline.steps[0]
    rows = sum(map(len, step.rows))
    batch = f"{rows} rows" if rows else "rows that probe did not see"
    answers = Answers(
        f"{len(baseline.steps)} steps of {batch}, {step.optimizer}, {len(step.grad)} parameters",
        **{each.name: getattr(reference_run, each.name) for each in fields(ScriptFacts)},
        same_rows=settings.same_rows,
        script=Path(runner.target.script).name,
        reference=base.name,
    )
    in_other = answers.other = Answers("", same_rows=settings.same_rows)
    runs: dict[bool, list[Run]] = {False: [reference_run], True: []}
    """By whether they are in the other environment."""
    in_modes = list(modes.layouts(settings, ranks))
    session.start(*in_modes, *modes.with_dropout(settings, in_modes, perturbed))
    for layout in [*layouts, *in_modes]:
        whole_run = session.run(layout)
        run = session.without_rehearsal(whole_run, baseline)
        is_other = layout.kind == AGAINST
        runs[is_other].append(run)
        if not is_other:
            answers.notes += remarks(run)
        if layout.kind:
            comparison = _comparison(session, run, baseline)
            if is_other and not run.failure:
                in_other.releases, in_other.imported = run.releases, run.imported
                in_other.notes += notes_on_other(session, whole_run, base)
            if undecided and comparison.as_reference:
                comparison.no_answer = VAIN
            if layout.why and comparison.no_answer:
                answers.unanswered[layout.kind] = comparison.no_answer
                continue
            answers.layouts.append(comparison)
            report(comparison)
            answers.notes += notes_on_run(run, baseline)
    first_broken = next((one for one in answers.layouts if one.broken), None)
    if settings.where and first_broken is not None:
        answers.where = locate(first_broken, session)
    for each, of_each in ((answers, runs[False]), (in_other, runs[True])):
        kinds = [{*run.ranks[0][0].impossible} for run in of_each if run.steps]
        each.impossible = frozenset(set.intersection(*kinds)) if kinds else frozenset()
    answers.written = runner.written
    if other is not None:
        answers.written.add(other.written)
    own_notes = [*remarks(reference_run), *notes_on_reference(baseline, perturbed)]
    others = of_other_alone(in_other.notes, own_notes, settings.against)
    answers.notes += [*own_notes, *others]
    if ends and (note := slopes.note_on_slope(slopes.slopes(session, baseline))):
        answers.notes.append(note)
    answers.notes = relevant(dict.fromkeys(answers.notes), answers.layouts)
    last_step = len(baseline.steps) - 1
    last_steps = [last_step if one.step is None else one.step - 1 for one in answers.layouts]
    answers.decided = baseline.decided(max(last_steps, default=last_step))
    answers.unseen = not any(step.rows) and SAMPLES not in settings.without
    answers.not_tested = list(not_tested(settings, runner.lane, reference_run, baseline, answers))
    return answers


def _comparison(session: Session, run: Run, baseline: Reference) -> Compared:
    """Compare a layout in the way of its kind."""
    kind = run.layout.kind
    if kind == RANKS_RESUME:
        return _rank_by_rank(session, run)
    if kind in MODES:
        return modes.compare_mode(session, run, baseline)
    if kind == SEED:
        usual = session.run(without_a_stop(session.settings))
        return _seeded(run, session.without_rehearsal(usual, baseline))
    comparison = compare_layout(session, run, baseline)
    if kind == AGAINST and not run.failure:
        comparison = compare_again(session, comparison, run, baseline)
    _compare_whole(comparison, session.settings, run, baseline)
    return comparison


def _compare_whole(
    comparison: Compared, settings: Settings, first_run: Run, baseline: Reference
) -> None:
    """Compare whole runs: the rows of an epoch and the schedules of the first runs, as one order of
    all samplers hides what a shuffle does; the evaluations and checkpoints of those whose steps
    were compared, as they depend on the weights."""
    run, reference_run, first_reference = comparison.run, comparison.reference, baseline.run
    if comparison.no_answer or not (run and reference_run and first_reference):
        return
    if settings.epoch and not comparison.broken:
        comparison.broken += epoch(first_run, first_reference, settings.same_rows)
    if not any(one.relation in (SAMPLES, "learning rate") for one in comparison.broken):
        comparison.broken += schedule(first_run.schedule, first_reference.schedule, run.layout)
    for difference in [*evaluation(run, reference_run), *checkpoints(run, reference_run)]:
        if isinstance(difference, Broken):
            comparison.broken.append(difference)
        elif not comparison.broken:
            comparison.notes.append(difference)


def _seeded(run: Run, usual: Run) -> Compared:
    """With another seed, the first step must have other rows."""
    comparison = Compared(
        run.layout, run.seconds, no_answer=run.failure or usual.failure, log=run.log
    )
    if comparison.no_answer:
        return comparison
    rows = [[one[0].rows for one in each.ranks] for each in (run, usual)]
    if rows[0] == rows[1] and any(map(any, rows[0])):
        comparison.broken = [Broken(ORDER, "the first step has the same rows in the same order")]
        comparison.step = 1
    return comparison


def _rank_by_rank(session: Session, run: Run) -> Compared:
    """Compare each rank of a resume with the same rank of a run without a stop, because it need not
    have what one rank alone would have. The program is the same, so the tolerance is what a
    repetition differs by."""
    base = without_a_stop(session.settings)
    again = replace(base, name=f"{base.name}, again")
    session.start(base, again)
    whole, repeated = (without_cleared(session.run(each)) for each in (base, again))
    if run.failure or whole.failure:
        why = run.failure or f"{base.name}: {whole.failure}"
        return Compared(run.layout, run.seconds, no_answer=why, log=run.log or whole.log)
    comparisons = []
    for rank, steps in enumerate(run.ranks):
        rounded = [each.ranks[rank] for each in [repeated] if each.ranks]
        one = compare(replace(run, ranks=[steps]), Reference(whole.ranks[rank], rounded))
        one.broken = [
            replace(fault, text=fault.text.replace("rank 0", f"rank {rank}"), ranks=(rank,))
            for fault in one.broken
            # Later stages of a pipeline are given activations.
            if not (rank and session.settings.same_rows and fault.relation == SAMPLES)
        ]
        comparisons.append(one)
    broken = sorted((one for one in comparisons if one.broken), key=lambda one: one.step or 0)
    return next(iter([*(one for one in comparisons if one.no_answer), *broken]), comparisons[0])
