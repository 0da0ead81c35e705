"""The layouts ``compile`` and ``checkpointing``: the script in another mode, and with dropout.

All other layouts are run in one mode and without dropout, so a compiler that changes a gradient, or
a recomputation that draws other masks, is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.rank.compare import share
from harness.rank.probe.modes import COMPILED, EAGER, KEPT, RECOMPUTED
from harness.training.probe.compare import plausibility
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.plausibility import Direction, Steep, wrong_slope
from harness.training.probe.compare.reference import Reference, as_one
from harness.training.probe.layouts import CHECKPOINTING, COMPILE, Layout, Settings, reference
from harness.training.probe.runner import Run, Runner

WITH_DROPOUT = "gradient with dropout"
"""The relation: it is that of the forward, with the same masks."""

NAMES = {
    EAGER: "without torch.compile",
    COMPILED: "compiled",
    KEPT: "without checkpointing",
    RECOMPUTED: "with checkpointing",
}

NEAR = 1e-2
"""How far a gradient may be from that without recomputation, as a part of its norm."""


def layouts(settings: Settings, reference_run: Run) -> Iterator[Layout]:
    """The modes that a user asks for, other than the script's own."""
    if COMPILE in settings.layouts:
        is_compiled = bool(reference_run.ranks[0][0]["compiled"])
        yield _in_mode(settings, COMPILE, EAGER if is_compiled else COMPILED)
    if CHECKPOINTING in settings.layouts:
        yield _in_mode(settings, CHECKPOINTING, KEPT)


def _in_mode(settings: Settings, kind: str, mode: str) -> Layout:
    base = replace(reference(settings), epoch=False, relations=(), base=settings.reference_ranks)
    return replace(base, name=NAMES[mode], kind=kind, mode=mode)


def compared(
    runner: Runner, settings: Settings, run: Run, compare: Callable[[Run], Compared]
) -> Compared:
    """Compare a mode with the reference, first without dropout and then with it."""
    if run.layout.kind == COMPILE:
        comparison = compare(run)
        if comparison.as_reference:
            _add(comparison, _slope_with_dropout(runner, settings))
        return comparison
    if not run.failure and not run.ranks[0][0]["checkpoints"]:
        run = runner.start(_in_mode(settings, CHECKPOINTING, RECOMPUTED)).result()
    comparison = compare(run)
    if comparison.as_reference:
        _add(comparison, _masks(runner, settings, run.layout.mode))
    elif comparison.broken and run.ranks[0][0]["draws"]:
        fault = comparison.broken[0]  # the model draws masks itself, which nobody switched off
        if fault.relation == "gradient":
            comparison.broken[0] = replace(fault, relation=WITH_DROPOUT)
    return comparison


def _add(comparison: Compared, outcome: Broken | str) -> None:
    """Note what dropout shows: a fault, or why there is no answer."""
    if isinstance(outcome, Broken):
        comparison.broken, comparison.step = [outcome], 1
    elif outcome:
        comparison.no_answer = outcome


def _dropped(settings: Settings, mode: str) -> Layout:
    """One step with dropout, in a mode."""
    name = f"{NAMES.get(mode, 'as written')}, with dropout"
    base = replace(reference(settings), epoch=False, relations=(), base=settings.reference_ranks)
    return replace(base, name=name, steps=1, mode=mode, dropout=True)


def _slope_with_dropout(runner: Runner, settings: Settings) -> Broken | str:
    """The compiled gradient must be that of the compiled forward, where the eager one is."""
    layout = _dropped(settings, COMPILED)
    run = as_one(runner.start(layout).result(), settings.same_rows)
    if run.failure:
        return f"{layout.name}: {run.failure}"
    by_direction = {
        direction: wrong_slope(slopes(runner, settings, Reference.of(run, []), layout, direction))
        for direction in (Direction.EARLY, Direction.LATE)
    }
    direction, slope = next(((d, s) for d, s in by_direction.items() if s is not None), (None, 0.0))
    if direction is None:
        return ""
    layout = _dropped(settings, EAGER)
    eager = as_one(runner.start(layout).result(), settings.same_rows)
    if eager.failure:
        return ""
    measured = slopes(runner, settings, Reference.of(eager, []), layout, direction)
    if not any(one is not None and one.is_right for one in measured):
        return ""  # a loop may stop gradients on purpose, which nobody sees in compiled code
    return Broken(
        WITH_DROPOUT,
        f"compiled, with dropout, its loss falls {slope:.3g} times as fast along {direction} as "
        "these say, and eagerly as fast: does the backward draw another mask?",
        slope,
    )


def _masks(runner: Runner, settings: Settings, mode: str) -> Broken | str:
    """The recomputation must draw the masks of the forward: the gradient is the same without it."""
    modes = (KEPT, "") if mode == KEPT else ("", RECOMPUTED)
    runs = []
    for each in modes:
        run = as_one(runner.start(_dropped(settings, each)).result(), settings.same_rows)
        if run.failure:
            return f"{run.layout.name}: {run.failure}"
        runs.append(run)
    (expected,), (step,) = (run.ranks[0][:1] for run in runs)
    gradient, kept = (each["raw"] or each["grad"] for each in (step, expected))
    if plausibility.are_near(gradient, kept, NEAR):
        return ""
    part = share(gradient, kept)
    return Broken(
        WITH_DROPOUT,
        f"with dropout and recomputation it is {part.ratio:.4g} times that without recomputation "
        f"(and {part.aside:.0%} of it in another direction): does the recomputation draw other "
        "masks (preserve_rng_state)?",
        part.ratio,
    )


def slopes(
    runner: Runner,
    settings: Settings,
    baseline: Reference,
    base: Layout | None = None,
    direction: Direction = Direction.GRADIENT,
) -> list[Steep | None]:
    """How steep the loss is along the first step's gradient, or a part of it. If that is not as the
    gradient says, smaller steps are measured, too: over a large step, a loss is not straight."""
    measured: list[Steep | None] = []
    for change in plausibility.CHANGES:
        ends = plausibility.ends_of_slope(settings, baseline, change, base, direction)
        for layout in ends:
            runner.start(layout)
        runs = [as_one(runner.start(each).result(), settings.same_rows) for each in ends]
        measured.append(plausibility.steep(baseline, runs, change))
        if measured[0] is None or measured[0].is_right:
            break
    return measured
