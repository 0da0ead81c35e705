"""The order of a probe: run the reference and all layouts, compare them, and add notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.rank.compare import without_warnings
from harness.training.probe import modes
from harness.training.probe.answers import Answers
from harness.training.probe.compare import plausibility
from harness.training.probe.compare.comparison import Compared, compare, refuse_unusable
from harness.training.probe.compare.faults import Broken, several
from harness.training.probe.compare.first_weights import (
    OTHER_DRAW,
    note_frozen,
    other_frozen,
    other_trained,
)
from harness.training.probe.compare.reference import Reference, as_one, without_cleared
from harness.training.probe.compare.whole_run import checkpoints, epoch, evaluation, schedule
from harness.training.probe.layouts import (
    AGAINST,
    COMPILE,
    MODES,
    RANKS_RESUME,
    SAMPLES,
    SEED,
    Layout,
    Settings,
    base_layout,
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
    without_numbers,
)
from harness.training.probe.one_order import compare_layout, run_as_one
from harness.training.probe.runner import Run, Runner, Step
from harness.training.probe.where.locate import locate

ORDER = "order of samples"

LEAST_DECIDED = 1e-3
"""The share of the values whose gradients must be more than rounding in the first step."""

VAIN = (
    "hardly a gradient of the reference is more than rounding, so nothing can be compared: are "
    "all its rows equal?"
)

VAIN_COMPILED = (
    "the gradient of the compiled reference is not that of eager code, with which probe measures "
    "rounding, so nothing can be compared"
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
    base = base_layout(settings)
    layouts = compared(settings)
    ranks, no_compiler = _started(runner, other, settings, base, layouts)
    reference_run = as_one(ranks, settings.same_rows)
    refuse_unusable(reference_run)
    perturbed = [run_as_one(runner, settings, each) for each in rounding(base)]
    baseline = Reference.of(reference_run, perturbed)
    undecided = baseline.decided(0) < LEAST_DECIDED
    sloped = not undecided and plausibility.same_gradients(ranks)
    ends = plausibility.ends_of_slope(settings, baseline, plausibility.CHANGES[0]) if sloped else []
    for layout in ends:
        runner.start(layout)
    answers = Answers(
        _about(reference_run),
        releases=reference_run.releases,
        imported=reference_run.imported,
        loaded=reference_run.loaded,
        on_cpu=reference_run.on_cpu,
        relations=reference_run.relations,
        same_rows=settings.same_rows,
        script=Path(runner.target.step_file or runner.target.script).name,
        reference=base.name,
    )
    if no_compiler:
        answers.unanswered[COMPILE] = no_compiler
    odd_compiler = plausibility.unlike_eager(baseline)
    vain = (VAIN_COMPILED if odd_compiler else VAIN) if undecided else ""
    runs: dict[bool, list[Run]] = {False: [reference_run], True: []}
    """By whether they are in the other environment."""
    in_modes = list(modes.layouts(settings, ranks))
    for layout in [*in_modes, *modes.with_dropout(settings, in_modes, perturbed)]:
        runner.start(layout)
    for layout in [*layouts, *in_modes]:
        of_layout = _runner_of(layout, runner, other)
        whole_run = of_layout.start(layout).result()
        run = without_cleared(whole_run, baseline.steps, settings.same_rows)
        runs[layout.kind == AGAINST].append(run)
        answers.seconds[layout.name] = run.seconds
        if layout.kind != AGAINST:
            answers.notes += remarks(run)
        if layout.kind:
            comparison = _comparison(runner, settings, run, baseline, of_layout)
            if layout.kind == AGAINST and not run.failure:
                answers.other_releases, answers.other_imported = run.releases, run.imported
                answers.other_notes += _notes_on_other(whole_run, settings, base)
            if comparison.as_reference and not (odd_compiler and layout.kind == COMPILE):
                comparison.no_answer = vain
            if layout.why and comparison.no_answer:
                answers.unanswered[layout.kind] = comparison.no_answer
                continue
            answers.layouts.append(comparison)
            report(comparison)
            answers.notes += notes_on_run(run, baseline)
    first_broken = next((one for one in answers.layouts if one.broken), None)
    if settings.where and first_broken is not None:
        of_layout = _runner_of(first_broken.layout, runner, other)
        answers.where = locate(first_broken, settings, runner.start, of_layout.start)
    answers.impossible, answers.other_impossible = map(_impossible, (runs[False], runs[True]))
    answers.written = runner.written
    if other is not None:
        answers.written.add(other.written)
    own_notes = [*remarks(reference_run), *notes_on_reference(baseline, perturbed, answers.layouts)]
    answers.notes += [*own_notes, *_of_other_alone(answers.other_notes, own_notes, settings)]
    if ends and (note := plausibility.note_on_slope(modes.slopes(runner, settings, baseline))):
        answers.notes.append(note)
    answers.notes = relevant(dict.fromkeys(answers.notes), answers.layouts)
    answers.decided = baseline.decided(_last_compared(answers.layouts, baseline))
    answers.unseen = not any(baseline.steps[0]["rows"]) and SAMPLES not in settings.without
    answers.not_tested = list(not_tested(settings, runner.lane, reference_run, baseline, answers))
    return answers


def _started(
    runner: Runner,
    other: Runner | None,
    settings: Settings,
    base: Layout,
    layouts: Sequence[Layout],
) -> tuple[Run, str]:
    """Start all layouts; returns the ranks of the reference. If a compiler fails in one of the
    environments, all is run eagerly, and its message is returned, too."""

    def start() -> Run:
        for layout in (base, *rounding(base), *layouts):
            _runner_of(layout, runner, other).start(layout)
        return runner.start(base).result()

    ranks = start()
    if COMPILE in settings.layouts:
        return ranks, ""
    if why := modes.why_not_compiled(ranks) or _why_not_compiled(layouts, other):
        for each in filter(None, (runner, other)):
            each.run_eagerly()
        ranks = start()
    return ranks, why


def _comparison(
    runner: Runner, settings: Settings, run: Run, baseline: Reference, of_layout: Runner
) -> Compared:
    """Compare a layout in the way of its kind."""
    kind = run.layout.kind
    if kind == RANKS_RESUME:
        return _rank_by_rank(runner, settings, run)
    if kind in MODES:

        def against_reference(in_mode: Run) -> Compared:
            without_rehearsal = without_cleared(in_mode, baseline.steps, settings.same_rows)
            return compare_layout(runner, settings, without_rehearsal, baseline, runner)

        return modes.compared(runner, settings, baseline, run, against_reference)
    if kind == SEED:
        usual = runner.start(without_a_stop(settings)).result()
        return _seeded(run, without_cleared(usual, baseline.steps, settings.same_rows))
    comparison = compare_layout(runner, settings, run, baseline, of_layout)
    if kind == AGAINST and not run.failure:
        comparison = _against(runner, settings, comparison, run, baseline, of_layout)
    _compare_whole(comparison, settings, run, baseline)
    return comparison


def _why_not_compiled(layouts: Sequence[Layout], other: Runner | None) -> str:
    """The message of a compiler that fails in the other environment."""
    if other is None:
        return ""
    runs = (other.start(layout).result() for layout in layouts if layout.kind == AGAINST)
    return next(filter(None, map(modes.why_not_compiled, runs)), "")


def _impossible(runs: Sequence[Run]) -> frozenset[str]:
    """The known bugs that none of these runs could set off."""
    of_runs = [{*run.ranks[0][0].get("impossible", ())} for run in runs if run.steps]
    return frozenset(set.intersection(*of_runs)) if of_runs else frozenset()


def _runner_of(layout: Layout, runner: Runner, other: Runner | None) -> Runner:
    return other if other is not None and layout.kind == AGAINST else runner


def _against(
    runner: Runner,
    settings: Settings,
    comparison: Compared,
    run: Run,
    baseline: Reference,
    other: Runner,
) -> Compared:
    """Compare the other environment; again with the reference's first weights, if it has others.
    Defaults that differ are noted."""
    step, expected = run.ranks[0][0], baseline.steps[0]
    shift = other_trained(comparison, step, expected)
    frozen = other_frozen(step, expected) if comparison.broken else ()
    drawn = several(shift)
    if frozen:
        shift = {**shift, **_frozen_shift(runner, settings, run.layout, other, frozen)}
    if shift:
        name = f"{run.layout.name}, with the first weights of the reference"
        shifted_layout = replace(run.layout, name=name, shift=shift)
        again = without_cleared(
            other.start(shifted_layout).result(), baseline.steps, settings.same_rows
        )
        comparison = compare_layout(runner, settings, again, baseline, other)
        comparison.layout = run.layout
    if drawn:
        comparison.notes.append(OTHER_DRAW.format(names=drawn))
    if frozen:
        note_frozen(comparison, frozen)
    comparison.notes += _other_defaults(step, expected)
    return comparison


def _notes_on_other(run: Run, settings: Settings, base: Layout) -> list[str]:
    """What the ranks of the other environment have noted, and what is noted on the reference if
    this is the same layout: faults that all layouts have there."""
    notes = list(remarks(run))
    if (run.layout.world, run.layout.k) == (base.world, base.k):
        baseline = Reference.of(as_one(run, settings.same_rows), [])
        notes += relevant(notes_on_reference(baseline, [], []), [])
    return notes


def _of_other_alone(
    notes: Sequence[str], own_notes: Sequence[str], settings: Settings
) -> Iterator[str]:
    """The notes on the other environment that the first one does not have, with its name."""
    own_kinds = set(map(without_numbers, own_notes))
    for note in dict.fromkeys(notes):
        if without_numbers(note) not in own_kinds:
            about = note.replace("the reference's", "its").replace("the reference itself", "it")
            yield f"with {settings.against}, {about.replace('the reference', 'it')}"


def _frozen_shift(
    runner: Runner, settings: Settings, layout: Layout, other: Runner, names: tuple[str, ...]
) -> dict[str, object]:
    """By name, how far the reference's frozen weights are from those of a layout in the other
    environment. Both run again for a step: usual runs record only samples of them."""
    base = replace(reference(settings), relations=())
    starts = [
        of_layout.start(
            replace(
                each,
                name=f"{each.name}, with frozen weights of {layout.name}",
                steps=1,
                epoch=False,
                goes_on=False,
                complete=names,
            )
        )
        for of_layout, each in ((runner, base), (other, layout))
    ]
    runs = [start.result() for start in starts]
    if any(run.failure for run in runs):
        return {}
    values, own_values = (run.ranks[0][0]["complete"] for run in runs)
    return {name: values[name] - own_values[name] for name in names}


def _last_compared(layouts: Sequence[Compared], baseline: Reference) -> int:
    """The last step of the reference that a layout was compared with, from 0."""
    last_step = len(baseline.steps) - 1
    steps = [last_step if found.step is None else found.step - 1 for found in layouts]
    return max(steps, default=last_step)


def _about(run: Run) -> str:
    step = run.ranks[0][0]
    rows, steps = sum(map(len, step["rows"])), len(run.ranks[0])
    batch = f"{rows} rows" if rows else "rows that probe did not see"
    return f"{steps} steps of {batch}, {step['optimizer']}, {len(step['grad'])} parameters"


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
        over_all = epoch(first_run, first_reference, settings.same_rows)
        comparison.broken += [over_all] if over_all else []
    if not any(one.relation in (SAMPLES, "learning rate") for one in comparison.broken):
        length = schedule(first_run.schedule, first_reference.schedule, run.layout)
        comparison.broken += [length] if length else []
    evaluated = evaluation(run, reference_run)
    differences: list[Broken | str] = [evaluated] if evaluated else []
    for difference in [*differences, *checkpoints(run, reference_run)]:
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
    rows = [[one[0]["rows"] for one in each.ranks] for each in (run, usual)]
    if rows[0] == rows[1] and any(map(any, rows[0])):
        comparison.broken = [Broken(ORDER, "the first step has the same rows in the same order")]
        comparison.step = 1
    return comparison


def _rank_by_rank(runner: Runner, settings: Settings, run: Run) -> Compared:
    """Compare each rank of a resume with the same rank of a run without a stop, because it need not
    have what one rank alone would have. The program is the same, so the tolerance is what a
    repetition differs by."""
    base = without_a_stop(settings)
    again = replace(base, name=f"{base.name}, again")
    whole, repeated = (
        without_cleared(future.result()) for future in map(runner.start, (base, again))
    )
    if run.failure or whole.failure:
        why = run.failure or f"{base.name}: {whole.failure}"
        return Compared(run.layout, run.seconds, no_answer=why, log=run.log or whole.log)
    comparisons = [_of_rank(rank, run, whole, repeated) for rank in range(len(run.ranks))]
    if settings.same_rows:  # later stages of a pipeline are given activations
        for comparison in comparisons[1:]:
            comparison.broken = [one for one in comparison.broken if one.relation != SAMPLES]
    broken = sorted((one for one in comparisons if one.broken), key=lambda one: one.step or 0)
    return next(iter([*(one for one in comparisons if one.no_answer), *broken]), comparisons[0])


def _of_rank(rank: int, run: Run, whole: Run, repeated: Run) -> Compared:
    baseline = Reference(whole.ranks[rank], [each.ranks[rank] for each in [repeated] if each.ranks])
    comparison = compare(replace(run, ranks=[run.ranks[rank]]), baseline)
    comparison.broken = [
        replace(one, text=one.text.replace("rank 0", f"rank {rank}"), ranks=(rank,))
        for one in comparison.broken
    ]
    return comparison


PRECISIONS = {0.0: "32 bits or more", 2.0**-7: "bf16", 2.0**-10: "fp16"}
"""By one ulp of 1 in the coarsest type of what modules return."""


def _other_defaults(step: Step, expected: Step) -> Iterator[str]:
    """Sentences about the settings of the first step that differ from the reference's."""
    if step["optimizer"] != expected["optimizer"]:
        yield f"the optimizer is {step['optimizer']}; in the reference {expected['optimizer']}"
    settings, others = step["settings"], expected["settings"]
    for name, value in others.items():
        if name in settings and settings[name] != value:
            yield f"{name} is {settings[name]}; in the reference {value}"
    if step["clipping"] != expected["clipping"]:
        text = "the norm to which the engine clips gradients is {}; in the reference {}"
        yield text.format(step["clipping"], expected["clipping"])
    precision, other = (PRECISIONS.get(one["coarse"], "16 bits") for one in (step, expected))
    if precision != other:
        yield f"the model computes in {precision}; in the reference in {other}"
