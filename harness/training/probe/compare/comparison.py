"""Compares a layout with the reference, up to the first step that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.bugs.api.numbers import finite
from harness.rank.compare import SAFE, Named, length, masked, worst
from harness.rank.probe.exchange import Step
from harness.system.errors import Inconclusive
from harness.system.text import QUOTED, count, several
from harness.training.probe.compare import plausibility
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.gradients import excused_gradients, random_draws
from harness.training.probe.compare.reference import (
    OF_VALUES,
    Moment,
    Reference,
    as_in,
    joined,
    rows_of,
)
from harness.training.probe.compare.relations import broken, harmful, is_updated, mean_loss, unheld
from harness.training.probe.layouts import SAMPLES, Layout
from harness.training.probe.runner import Run

OTHER_LOSS = "the loss of the layout"
"""How a note on it begins."""

FEWER = "has fewer rows than the first"

SMALLER = "let it begin with a smaller scale"

LARGE = 1e6
"""A weight above this was hardly initialised."""


@dataclass
class Compared:
    """What the comparison of a layout showed."""

    layout: Layout
    seconds: float = 0.0
    step: int | None = None
    """The first step at which a relation is broken, from 1."""
    broken: list[Broken] = field(default_factory=list)
    """In the order of cause and effect."""
    notes: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    with_dropout: bool = False
    """Whether a step with dropout was compared, too."""
    no_answer: str = ""
    log: str = ""
    run: Run | None = None
    """What was compared: another run than the first one, if that had another order of rows, or
    other first weights."""
    reference: Run | None = None
    """What it was compared with."""
    moment: Moment | None = None
    """The step at which a relation is broken, in the layout and in its reference."""
    worst: dict[str, float] = field(default_factory=dict)
    """The largest distances from the reference, in units of the spread of rounding."""

    @property
    def why(self) -> str:
        """Why a layout was run that nobody asked for; empty for others."""
        why = self.layout.why
        return f"{why}; one step had dropout" if why and self.with_dropout else why

    @property
    def as_reference(self) -> bool:
        return not (self.broken or self.no_answer)

    @property
    def has_other_samples(self) -> bool:
        """Whether the first broken relation is that of the samples."""
        return bool(self.broken) and self.broken[0].relation == SAMPLES

    @property
    def status(self) -> str:
        """``no answer``, ``broken`` or ``as the reference``."""
        if self.no_answer:
            return "no answer"
        return "broken" if self.broken else "as the reference"


@dataclass
class LocalGradients:
    """Gradients that differ between ranks: right if the optimizer averages them in its step. A step
    with a rate of 0 does not show whether it does."""

    broken: list[Broken] = field(default_factory=list)
    moment: Moment | None = None
    """The first step that has them."""
    averaged: bool = False

    def without(self, moment: Moment, faults: list[Broken]) -> list[Broken]:
        """The faults that remain without these gradients."""
        excused = excused_gradients(moment, faults)
        if not excused:
            return faults
        self.averaged |= is_updated(moment, {name for one in excused for name in one.parameters})
        if self.moment is None:
            self.broken, self.moment = faults, moment
        return harmful(one for one in faults if one not in excused)


def compare(run: Run, reference: Reference, same_rows: bool = False) -> Compared:
    """Compare the steps of a run until one differs from the reference's."""
    comparison = Compared(
        run.layout,
        run.seconds,
        no_answer=run.failure,
        log=run.log,
        run=run,
        reference=reference.run,
    )
    local_gradients = LocalGradients()
    if not run.failure:
        comparison = _compared(comparison, run, reference, same_rows, local_gradients)
    if local_gradients.moment is not None and not local_gradients.averaged:
        comparison.broken, comparison.no_answer = local_gradients.broken, ""
        comparison.moment = local_gradients.moment
        comparison.step = local_gradients.moment.number + 1
    if run.layout.resumed and comparison.has_other_samples:
        cause, rows = comparison.broken[0], rows_after_resume(run, reference.steps)
        comparison.broken[0] = replace(cause, details=(*cause.details, rows))
    return comparison


def _compared(
    comparison: Compared,
    run: Run,
    reference: Reference,
    same_rows: bool,
    local_gradients: LocalGradients,
) -> Compared:
    start = run.layout.first
    if len(reference.steps) <= start:
        comparison.no_answer = (
            f"the reference took {len(reference.steps)} steps: none follows the stop"
        )
    elif run.layout.resumed and any(step.skipped for step in reference.steps[: start + 1]):
        comparison.no_answer = f"the scaler of the loss skipped steps: {SMALLER}"
    if comparison.no_answer:
        return comparison
    ranks = [as_in(reference.steps[start], steps) for steps in run.ranks]
    loss_ratios: list[tuple[float, float]] = []
    """Of each step the bounds, by rounding, of the loss as a multiple of the reference's."""
    for step in range(min(run.steps, len(reference.steps) - start)):
        expected = reference.steps[start + step]
        if why := _why_infinite(expected):
            return _until(comparison, start + step, f"is not finite ({why})")
        whole = joined([steps[step] for steps in ranks], expected)
        rank_steps = [_shaped(each, expected) for each in whole]
        moment = Moment(reference, start + step, rank_steps, run.layout, step == 0, same_rows)
        if fault := unheld(moment):
            comparison.broken, comparison.step = [fault], start + step + 1
            return comparison
        if why := _incomparable(moment):
            comparison.no_answer = why
            return comparison
        if step == 0 and (parts := moment.parts_of(0)):
            comparison.notes.append(
                f"{len(parts)} parameters were not compared: a rank has parts of them "
                f"({several(parts)})"
            )
        _measure(moment, comparison.worst)
        comparison.broken = local_gradients.without(moment, broken(moment))
        loss, rounding = reference.loss(moment.number), reference.loss_spread(moment.number)
        if loss and finite(ratio := mean_loss(moment) / loss):
            away = SAFE * rounding / abs(loss) * max(abs(ratio), 1)
            loss_ratios.append((ratio - away, ratio + away))
        if comparison.has_other_samples and reference.ends(start + step):
            return _until(comparison, start + step)
        if comparison.broken and (why := random_draws(moment, comparison.broken[0])):
            comparison.no_answer, comparison.broken = why, []
        elif comparison.broken:
            comparison.step, comparison.moment = start + step + 1, moment
        if comparison.broken or comparison.no_answer:
            return comparison
    if run.steps < len(reference.steps) - start:
        if run.steps and reference.ends(start + run.steps):
            return _until(comparison, start + run.steps)
        text = f"{run.steps} steps; the reference took {len(reference.steps) - start}"
        comparison.broken = [Broken("steps", text)]
    else:
        comparison.notes += uneven(loss_ratios)
    return comparison


def uneven(ratios: Sequence[tuple[float, float]]) -> Iterator[str]:
    """A note if no factor explains the losses, although all gradients are right."""
    least, most = [low for low, _ in ratios], [high for _, high in ratios]
    if ratios and max(least) > min(most):
        yield (
            f"{OTHER_LOSS} is {min(most):.3g} to {max(least):.3g} times the reference's, while "
            "the gradients are right: is a wrong loss logged? No fault if the loop weighs gradients"
        )


def _shaped(step: Step, expected: Step) -> Step:
    """A step with the reference's shapes where sizes agree: FSDP1 flattens a parameter even where a
    rank has all of it."""
    shaped = {}
    for kind in OF_VALUES:
        tensors, likes = step.tensors(kind), expected.tensors(kind)
        fitting = (n for n in likes if n in tensors and tensors[n].size == likes[n].size)
        shaped[kind] = {**tensors, **{n: tensors[n].reshape(likes[n].shape) for n in fitting}}
    return step.copy(**shaped)


def _until(comparison: Compared, step: int, problem: str = FEWER) -> Compared:
    """End the comparison before this step, as a rule the end of the data: a sampler may fill it up,
    or skip it."""
    comparison.broken = []
    why = f"step {step + 1} of the reference {problem}"
    if step == comparison.layout.first:
        comparison.no_answer = why
    else:
        comparison.notes.append(f"{why}, so it and those after it were not compared")
    return comparison


def rows_after_resume(run: Run, reference_steps: Sequence[Step]) -> str:
    """How many rows after a resume were trained before the stop, and how many are skipped."""
    start = run.layout.first
    before, after = (
        {row for step in part for row in rows_of(step)}
        for part in (reference_steps[:start], reference_steps[start:])
    )
    rows = [row for steps in run.ranks for step in steps for row in rows_of(step)]
    again, skipped = sum(row in before - after for row in rows), len(after - {*rows})
    return (
        f"of {count(len(rows), 'row')} after the resume, {again} come again that were trained "
        f"before the stop; {skipped} that are trained without the stop do not come"
    )


def _why_infinite(step: Step) -> str:
    """Why nothing can be compared with this step of a reference; empty if it is finite."""
    if off := _infinite(step.tensors("raw")) or _infinite(step.grad):
        causes = ["its first gradients are not finite"]
        if lost := [name for name, largest in step.largest.items() if not largest < LARGE]:
            causes.append(
                f"the weights {several(lost)} are not below {LARGE:.0e} before the first step. "
                "Are all weights initialised?"
            )
        place, losses = step.infinite, [loss for loss in step.losses if not finite(loss)]
        if losses and "the gradient" in place:
            causes.append(f"its loss is {losses[0]}, and the outputs of all modules are finite")
        else:
            causes.append(f"the first that is not finite is {place or several(off)}")
        return "; ".join(causes)
    if off := _infinite(step.update):
        kind, skipped = step.optimizer, step.skipped
        text = f"its first step is not finite, although its gradients are: {kind}, {several(off)}"
        # torch 2.13.0 has it in SGD with momentum and fused=True.
        after = f"; what {skipped} skipped steps leave in the state of {kind} is used"
        return text + (after if skipped and step.fresh else "")
    return ""


def _infinite(tensors: Named) -> list[str]:
    return [name for name, tensor in tensors.items() if not finite(length(tensor))]


def _incomparable(moment: Moment) -> str:
    """Why a step cannot be compared: skipped steps shifted it, or the optimizer has shards that
    cannot be put together. Empty if it can."""
    for rank, step in enumerate(moment.ranks):
        if step.skipped != moment.expected.skipped:
            return (
                f"the scaler of the loss skipped {step.skipped} steps before step "
                f"{moment.number + 1}, in the reference {moment.expected.skipped}: {SMALLER}"
            )
        owned, gradients = moment.owned(rank, moment.expected.grad), step.grad
        common = [name for name in owned if name in gradients]
        is_same_shape = all(gradients[name].shape == owned[name].shape for name in common)
        has_only_parts = len(moment.parts_of(rank)) == len(step.update)
        if has_only_parts or not is_same_shape or (owned and not common):
            return (
                f"the optimizer has {several(gradients)}, in the reference {several(owned)}: parts "
                "or other parameters, which probe cannot put together"
            )
    return ""


def _measure(moment: Moment, largest: dict[str, float]) -> None:
    """Keep the largest distances: they show how near a right loop comes to an alarm."""
    keep = moment.reference.certain(moment.number)
    for rank, step in enumerate(moment.ranks):
        update = masked(moment.owned(rank, step.update), keep)
        expected_update = moment.owned(rank, masked(moment.expected.update, keep))
        gradient = moment.owned(rank, moment.expected.grad)
        distances = {
            "gradient": worst(step.grad, gradient, moment.spread("grad")),
            "update": worst(update, expected_update, moment.spread("update")),
        }
        for quantity, distance in distances.items():
            largest[quantity] = max(largest.get(quantity, 0.0), distance)


def refuse_unusable(reference: Run) -> None:
    """Raise Inconclusive if the reference gives no answer, or nothing that could be compared."""
    if reference.failure:
        why = reference.failure
        if reference.layout.world == 1:
            why += ". If the script needs several ranks, add --reference-ranks 2"
    else:
        steps = reference.ranks[0]
        why = _why_infinite(steps[0]) or plausibility.why_nothing_is_trained(steps)
    if why:
        text = f"the reference, {reference.layout.name}, gives no answer: {why}"
        raise Inconclusive(QUOTED.join([text, *reference.log.splitlines()]))
