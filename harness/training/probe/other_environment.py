"""Compares the other environment with the reference's: its first weights, its defaults, its notes.

First weights that are trained may be drawn in another order, which is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.rank.probe.exchange import Step
from harness.system.text import several
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.reference import Reference, as_one
from harness.training.probe.layouts import Layout
from harness.training.probe.notes import notes_on_reference, relevant, remarks, without_numbers
from harness.training.probe.one_order import compare_layout
from harness.training.probe.runner import Run
from harness.training.probe.session import Session

OTHER_DRAW = (
    "draws other first weights ({names}). It was compared again, with the reference's first weights"
)

PRECISIONS = {0.0: "32 bits or more", 2.0**-7: "bf16", 2.0**-10: "fp16"}
"""By one ulp of 1 in the coarsest type of what modules return."""


def compare_again(
    session: Session, comparison: Compared, run: Run, baseline: Reference
) -> Compared:
    """Compare the other environment again with the reference's first weights, if it has others.
    Defaults that differ are noted."""
    step, expected = run.ranks[0][0], baseline.steps[0]
    if shift := other_trained(comparison, step, expected):
        name = f"{run.layout.name}, with the first weights of the reference"
        shifted_run = session.run(replace(run.layout, name=name, shift=shift))
        again = session.without_rehearsal(shifted_run, baseline)
        comparison = compare_layout(session, again, baseline)
        comparison.layout = run.layout
        comparison.notes.append(OTHER_DRAW.format(names=several(shift)))
    comparison.notes += _other_defaults(step, expected)
    return comparison


def other_trained(comparison: Compared, step: Step, expected: Step) -> dict[str, object]:
    """By name, how far the reference's weights are from those of the step, if the layout begins
    with others."""
    start, expected_start = step.before, expected.before
    same_shapes = start.keys() == expected_start.keys() and all(
        start[name].shape == expected_start[name].shape for name in start
    )
    first = [fault for fault in comparison.broken[:1] if fault.relation == "weights"]
    if not (first and same_shapes):
        return {}
    return {name: expected_start[name] - start[name] for name in first[0].parameters}


def _other_defaults(step: Step, expected: Step) -> Iterator[str]:
    """Sentences about the settings of the first step that differ from the reference's."""
    facts: list[tuple[str, Any, Any]] = [
        ("the optimizer is", step.optimizer, expected.optimizer),
        *(
            (f"{name} is", value, expected.settings[name])
            for name, value in step.settings.items()
            if name in expected.settings
        ),
        ("the norm to which the engine clips gradients is", step.clipping, expected.clipping),
    ]
    computed, expected_type = (PRECISIONS.get(one.coarse, "16 bits") for one in (step, expected))
    facts.append(("the model computes in", computed, expected_type))
    for text, value, expected_value in facts:
        if value != expected_value:
            middle = " in" * text.endswith(" in")
            yield f"{text} {value}; in the reference{middle} {expected_value}"


def notes_on_other(session: Session, run: Run, base: Layout) -> list[str]:
    """What the ranks of the other environment have noted, and what is noted on the reference if
    this is the same layout: faults that all layouts have there."""
    notes = list(remarks(run))
    if (run.layout.world, run.layout.k) == (base.world, base.k):
        baseline = Reference.of(as_one(run, session.settings.same_rows), [])
        notes += relevant(notes_on_reference(baseline, []), [])
    return notes


def of_other_alone(notes: Sequence[str], own_notes: Sequence[str], name: str) -> Iterator[str]:
    """The notes on the other environment that the first one does not have, with its name."""
    own_kinds = set(map(without_numbers, own_notes))
    for note in dict.fromkeys(notes):
        if without_numbers(note) not in own_kinds:
            about = note.replace("the reference's", "its").replace("the reference itself", "it")
            yield f"with {name}, {about.replace('the reference', 'it')}"
