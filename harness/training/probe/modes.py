"""The layouts ``compile`` and ``checkpointing``: the script in another mode, and with dropout.

All other layouts are run in one mode and without dropout, so a compiler that changes a gradient, or
a recomputation that draws other masks, is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.bugs.api.numbers import finite
from harness.rank.compare import SAFE, Named, distances, length, share, spread
from harness.rank.probe.modes import COMPILED, EAGER, KEPT, RECOMPUTED, SAME_MASKS
from harness.training.probe.compare import plausibility
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken, several
from harness.training.probe.compare.plausibility import Direction, Steep, wrong_slope
from harness.training.probe.compare.reference import Reference, as_one
from harness.training.probe.layouts import (
    CHECKPOINTING,
    COMPILE,
    Layout,
    Settings,
    reference,
    rounding,
)
from harness.training.probe.runner import Run, Runner, Step

WITH_DROPOUT = "gradient with dropout"
"""The relation: it is that of the forward, with the same masks."""

NAMES = {
    EAGER: "without torch.compile",
    COMPILED: "compiled",
    SAME_MASKS: "compiled, with the masks of eager code",
    KEPT: "without checkpointing",
    RECOMPUTED: "with checkpointing",
}

NEAR = 1e-2
"""How far the gradient of a parameter may be from that without recomputation, or without a
compiler, as a part of its norm."""

OTHER_MASKS = 0.1
"""With other masks, a loss is hardly ever nearer to another than this part of what masks do to it.
"""

COMPILED_DROPOUT = "compiled code with dropout"
"""How a line on what was not tested begins."""

NO_MASKS = (
    f"{COMPILED_DROPOUT} (its loss and its gradient could not be compared: the loop stops or "
    "scales gradients, or computes in 16 bits, and {why})"
)


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
            _add(comparison, _compiled_with_dropout(runner, settings, comparison))
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


def _compiled_with_dropout(
    runner: Runner, settings: Settings, comparison: Compared
) -> Broken | str:
    """The compiled gradient must be that of the compiled forward, where the eager one is. Where the
    loss has no slope, it must be that of eager code with the same masks."""
    layout = _dropped(settings, COMPILED)
    run = as_one(runner.start(layout).result(), settings.same_rows)
    if run.failure:
        return f"{layout.name}: {run.failure}"
    measured = {
        direction: slopes(runner, settings, Reference.of(run, []), layout, direction)
        for direction in (Direction.EARLY, Direction.LATE)
    }
    for direction, steeps in measured.items():
        slope = wrong_slope(steeps)
        if slope is not None and _eager_is_right(runner, settings, direction):
            return Broken(WITH_DROPOUT, OTHER_SLOPE.format(slope, direction), slope)
    if all(any(one is not None and one.is_right for one in each) for each in measured.values()):
        return ""
    return _against_eager(runner, settings, comparison)


OTHER_SLOPE = (
    "compiled, with dropout, its loss falls {:.3g} times as fast along {} as these say, and "
    "eagerly as fast: does the backward draw another mask?"
)


def _eager_is_right(runner: Runner, settings: Settings, direction: Direction) -> bool:
    """Whether the loss of eager code with dropout falls as its gradient says: a loop may stop
    gradients on purpose, which nobody sees in compiled code."""
    layout = _dropped(settings, EAGER)
    eager = as_one(runner.start(layout).result(), settings.same_rows)
    if eager.failure:
        return False
    steeps = slopes(runner, settings, Reference.of(eager, []), layout, direction)
    return any(one is not None and one.is_right for one in steeps)


def _against_eager(runner: Runner, settings: Settings, comparison: Compared) -> Broken | str:
    """Compare compiled code with eager code that draws the same masks, if it does."""
    layouts = [
        _dropped(settings, EAGER),
        _dropped(settings, SAME_MASKS),
        replace(_dropped(settings, EAGER), name="without dropout, eagerly", dropout=False),
    ]
    steps = [_first_step(runner, settings, layout) for layout in layouts]
    if why := next((each for each in steps if isinstance(each, str)), ""):
        comparison.not_tested.append(NO_MASKS.format(why=why))
        return ""
    eager, compiled, plain = (each for each in steps if not isinstance(each, str))
    apart, effect = (abs(_loss(each) - _loss(eager)) for each in (compiled, plain))
    if eager.get("generators") != compiled.get("generators") or not apart <= OTHER_MASKS * effect:
        comparison.not_tested.append(NO_MASKS.format(why="its masks are not those of eager code"))
        return ""
    if names := _unlike(runner, settings, compiled, eager, EAGER):
        text = _in_words(compiled, eager, names)
        return Broken(
            WITH_DROPOUT,
            f"compiled, with the same masks of dropout, that of {several(names)} is {text} that of "
            "eager code",
            parameters=tuple(names),
        )
    return ""


def _masks(runner: Runner, settings: Settings, mode: str) -> Broken | str:
    """The recomputation must draw the masks of the forward: the gradient is the same without it."""
    modes = (KEPT, "") if mode == KEPT else ("", RECOMPUTED)
    expected, step = (_first_step(runner, settings, _dropped(settings, each)) for each in modes)
    if isinstance(expected, str) or isinstance(step, str):
        return expected if isinstance(expected, str) else str(step)
    names = _unlike(runner, settings, step, expected, modes[0])
    if not names:
        return ""
    return Broken(
        WITH_DROPOUT,
        f"with dropout and recomputation that of {several(names)} is "
        f"{_in_words(step, expected, names)} that without recomputation: does the recomputation "
        "draw other masks (preserve_rng_state)?",
        share(_gradient(step), _gradient(expected), names).ratio,
        parameters=tuple(names),
    )


def _first_step(runner: Runner, settings: Settings, layout: Layout) -> Step | str:
    """The first step of a layout, or why there is none."""
    run = as_one(runner.start(layout).result(), settings.same_rows)
    return f"{layout.name}: {run.failure}" if run.failure else run.ranks[0][0]


def _loss(step: Step) -> float:
    return float(sum(step["losses"]))


def _gradient(step: Step) -> Named:
    gradient: Named = step["raw"] or step["grad"]
    return gradient


def _in_words(step: Step, expected: Step, names: list[str]) -> str:
    part = share(_gradient(step), _gradient(expected), names)
    if not finite(part.ratio):
        return "not finite, unlike"
    return f"{part.ratio:.4g} times (and {part.aside:.0%} of it in another direction)"


def _unlike(runner: Runner, settings: Settings, step: Step, expected: Step, mode: str) -> list[str]:
    """The parameters whose gradients differ by more than NEAR, and by more than rounding moves
    those of the expected step, which has this mode. The norm of all hides that: gradients behind a
    small factor, such as that of LayerScale, are far smaller than those of the last bias."""
    gradient, twin = _gradient(step), _gradient(expected)
    twin = {n: g for n, g in twin.items() if n in gradient and gradient[n].shape == g.shape}
    far = distances(gradient, twin)
    names = [name for name, values in twin.items() if not far[name] <= NEAR * length(values)]
    if not names:
        return []
    steps = [_first_step(runner, settings, each) for each in rounding(_dropped(settings, mode))]
    noise = spread([_gradient(each) for each in steps if not isinstance(each, str)], twin)
    return [name for name in names if not far[name] <= SAFE * noise[name]]


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
