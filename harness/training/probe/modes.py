"""The layouts ``compile`` and ``checkpointing``: the script in another mode, and with dropout.

All other layouts are run in one mode and without dropout, so a compiler that changes a gradient, or
a recomputation that draws other masks, is the same in all of them. They run on request, and where
the script itself compiles or recomputes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from harness.rank.compare import SAFE, Spread, distances, length, share, spread
from harness.rank.probe.exchange import Step
from harness.rank.probe.modes import COMPILED, EAGER, KEPT, RECOMPUTED
from harness.system.text import several
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken, in_directions
from harness.training.probe.compare.reference import Reference, as_one, unclipped
from harness.training.probe.layouts import (
    CHECKPOINTING,
    COMPILE,
    Layout,
    Settings,
    reference,
    rounding,
)
from harness.training.probe.one_order import compare_layout
from harness.training.probe.runner import Run
from harness.training.probe.session import Session
from harness.training.probe.slopes import Direction, ends_of_slope, is_right, slopes, wrong_slope

WITH_DROPOUT = "gradient with dropout"
"""The relation: it is that of the forward, with the same masks."""

NAMES = {
    EAGER: "without torch.compile",
    COMPILED: "compiled",
    KEPT: "without checkpointing",
    RECOMPUTED: "with checkpointing",
}

NEAR = 1e-2
"""How far the gradient of a parameter may be from that without recomputation, or without a
compiler, as a part of its norm."""

COMPILED_DROPOUT = (
    "compiled code with dropout (its loss has no slope: the loop stops or scales gradients, or "
    "computes in 16 bits)"
)

WHY = {
    COMPILE: "the script compiles, and no other layout shows what a compiler changes",
    CHECKPOINTING: "the script recomputes activations, and no other layout shows what that changes",
}
"""Why a mode is run although the user did not ask for it."""

NOTHING_COMPILED = (
    "nothing was compiled: the script does not call what it compiles, or the compiler skips it"
)

STILL_COMPILED = "this torch cannot run it eagerly: it has no torch.compiler.set_stance"

OWN_DRAWS = "the model draws random numbers itself, and compiled code may draw others"


def layouts(settings: Settings, reference_run: Run) -> Iterator[Layout]:
    """The modes other than the script's own: those that the user asks for, and, if the user leaves
    the choice to probe, those whose counterpart the script uses."""
    compiles, recomputes = (_any(reference_run, what) for what in ("compiled", "checkpoints"))
    for kind, is_used, mode in (
        (COMPILE, compiles, EAGER if compiles else COMPILED),
        (CHECKPOINTING, recomputes, KEPT),
    ):
        layout = _in_mode(settings, kind, mode)
        if kind in settings.layouts:
            yield layout
        elif is_used and settings.is_usual:
            yield replace(layout, why=WHY[kind])


def with_dropout(
    settings: Settings, in_modes: Iterable[Layout], perturbed: Iterable[Run]
) -> Iterator[Layout]:
    """The run of compiled code with dropout that one of these modes will need: it takes longest, so
    it begins early."""
    is_random = any(_any(run, "rates", "draws") for run in perturbed if run.ranks)
    if any(one.kind == COMPILE and (is_random or not one.why) for one in in_modes):
        yield _dropped(settings, COMPILED)


def _any(run: Run, *facts: str) -> bool:
    """Whether one of these facts of the first step holds on a rank."""
    return any(getattr(steps[0], fact) for steps in run.ranks for fact in facts)


def _in_mode(settings: Settings, kind: str, mode: str) -> Layout:
    name = NAMES.get(mode, "as written")
    base = replace(reference(settings), epoch=False, relations=(), base=settings.reference_ranks)
    return replace(base, name=name, kind=kind, mode=mode)


def _dropped(settings: Settings, mode: str) -> Layout:
    """One step with dropout, in a mode."""
    layout = _in_mode(settings, "", mode)
    return replace(layout, name=f"{layout.name}, with dropout", steps=1, dropout=True)


def compare_mode(session: Session, run: Run, baseline: Reference) -> Compared:
    """Compare a mode with the reference, first without dropout and then with it. What nobody asked
    for is compared with dropout only if the model draws random numbers."""
    kind, settings = run.layout.kind, session.settings
    if kind == CHECKPOINTING and not (run.failure or _any(run, "checkpoints")):
        run = session.run(_in_mode(settings, CHECKPOINTING, RECOMPUTED))
    comparison = compare_layout(session, session.without_rehearsal(run, baseline), baseline)
    reason = ""
    if comparison.as_reference and kind == COMPILE:
        reason = _compare_compiled(comparison, baseline, as_one(run, settings.same_rows))
    is_random = comparison.as_reference and (not run.layout.why or _any(run, "rates", "draws"))
    if is_random and reason in ("", OWN_DRAWS):
        outcome = (
            _compiled_with_dropout(session, comparison)
            if kind == COMPILE
            else _masks(session, run.layout.mode)
        )
        if isinstance(outcome, Broken):
            comparison.broken, comparison.step = [outcome], 1
        elif outcome and run.layout.why:  # nobody asked: without dropout, there is an answer
            comparison.not_tested.append(f"{comparison.layout.name}, with dropout ({outcome})")
        elif outcome:
            comparison.no_answer = outcome
        decided = isinstance(outcome, Broken) or not (outcome or comparison.not_tested)
        comparison.with_dropout = decided
    elif kind == CHECKPOINTING and comparison.broken and run.ranks[0][0].draws:
        fault = comparison.broken[0]  # the model draws masks itself, which nobody switched off
        if fault.relation == "gradient":
            comparison.broken[0] = replace(fault, relation=WITH_DROPOUT)
    if comparison.as_reference:
        comparison.no_answer = reason
    return comparison


def _compare_compiled(comparison: Compared, baseline: Reference, run: Run) -> str:
    """Compare the gradients of compiled code with those of eager code, where one is the reference
    and the other its layout. The reference's tolerance does not do that: the perturbed runs compile
    nothing, so it contains whatever a compiler changes. Returns why it cannot be done."""
    if run.layout.mode == COMPILED:
        return "" if _any(run, "compiled") else NOTHING_COMPILED
    if _any(run, "compiled"):
        return STILL_COMPILED
    eager = Reference(run.ranks[0], baseline.rounded)
    for number, (step, expected) in enumerate(zip(baseline.steps, eager.steps, strict=False)):
        if step.draws or expected.draws:
            return OWN_DRAWS
        noise = partial(eager.spread, number, "raw" if expected.raw else "grad")
        text = "compiled, that of {} is {} that of eager code"
        if fault := _fault("gradient", text, step, expected, noise):
            comparison.broken, comparison.step = [fault], number + 1
            break
    return ""


def _compiled_with_dropout(session: Session, comparison: Compared) -> Broken | str:
    """The compiled gradient must be that of the compiled forward, where the eager one is."""
    layout = _dropped(session.settings, COMPILED)
    run = session.run_as_one(layout)
    if run.failure:
        return f"{layout.name}: {run.failure}"
    if not _any(run, "compiled"):
        return NOTHING_COMPILED
    baseline, directions = Reference.of(run, []), (Direction.EARLY, Direction.LATE)
    for direction in directions:
        ends = ends_of_slope(session.settings, baseline, layout=layout, direction=direction)
        session.start(*ends)
    measured = [slopes(session, baseline, layout, direction) for direction in directions]
    for direction, steeps in zip(directions, measured, strict=True):
        if (slope := wrong_slope(steeps)) is None:
            continue
        # A loop may stop gradients on purpose, which nobody sees in compiled code.
        eager_layout = _dropped(session.settings, EAGER)
        eager = session.run_as_one(eager_layout)
        if eager.failure:
            continue
        if is_right(slopes(session, Reference.of(eager, []), eager_layout, direction)):
            return Broken(WITH_DROPOUT, OTHER_SLOPE.format(slope, direction), slope)
    if not all(map(is_right, measured)):
        comparison.not_tested.append(COMPILED_DROPOUT)
    return ""


OTHER_SLOPE = (
    "compiled, with dropout, its loss falls {:.3g} times as fast along {} as these say, and "
    "eagerly as fast: does the backward draw another mask?"
)


def _masks(session: Session, mode: str) -> Broken | str:
    """The recomputation must draw the masks of the forward: the gradient is the same without it."""
    pair = (KEPT, "") if mode == KEPT else ("", RECOMPUTED)
    expected, step = (session.first_step(_dropped(session.settings, each)) for each in pair)
    if isinstance(expected, str) or isinstance(step, str):
        return expected if isinstance(expected, str) else str(step)
    text = (
        "with dropout and recomputation that of {} is {} that without recomputation: does the "
        "recomputation draw other masks (preserve_rng_state)?"
    )
    return _fault(WITH_DROPOUT, text, step, expected, _noise(session, expected, pair[0])) or ""


def _noise(session: Session, expected: Step, mode: str) -> Callable[[], Spread]:
    """Measures how far rounding moves the gradients of a step with dropout, in a mode."""

    def noise() -> Spread:
        steps = map(session.first_step, rounding(_dropped(session.settings, mode)))
        gradients = [unclipped(each) for each in steps if not isinstance(each, str)]
        return spread(gradients, unclipped(expected))

    return noise


def _fault(
    relation: str, text: str, step: Step, expected: Step, noise: Callable[[], Spread]
) -> Broken | None:
    """The parameters whose gradients differ by more than NEAR, and by more than rounding. The norm
    of all hides that: gradients behind a small factor, such as that of LayerScale, are far smaller
    than those of the last bias."""
    gradient, twins = unclipped(step), unclipped(expected)
    twins = {n: g for n, g in twins.items() if n in gradient and gradient[n].shape == g.shape}
    far = distances(gradient, twins)
    far = {n: far[n] for n, values in twins.items() if not far[n] <= NEAR * length(values)}
    least = noise() if far else {}
    names = [name for name, distance in far.items() if not distance <= SAFE * least[name]]
    if not names:
        return None
    part = share(gradient, unclipped(expected), names)
    text = text.format(several(names), in_directions(part))
    return Broken(relation, text, part.ratio, parameters=tuple(names))
