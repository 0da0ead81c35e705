"""First weights of another environment that are not the reference's.

Those that are trained may be drawn in another order, which is no fault. Those that are frozen are
loaded, as a rule: other ones are a fault, even if all that is trained fits to them.
"""

from __future__ import annotations

from harness.rank.compare import norm
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken, several
from harness.training.probe.runner import Step

ROUNDED = 0.01
"""How far (as a part of their size) frozen weights may be from the reference's: they may be loaded
in another type."""

OTHER_DRAW = (
    "draws other first weights ({names}). It was compared again, with the reference's first weights"
)
OTHER_FROZEN = "its frozen weights are other ones ({names})"
THE_SAME = "with those of the first environment, the rest trains the same"
NO_ANSWER = "with those of the first environment, there is no answer"


def other_trained(comparison: Compared, step: Step, expected: Step) -> dict[str, object]:
    """By name, how far the reference's weights are from those of the step, if the layout begins
    with others."""
    start, expected_start = step["before"], expected["before"]
    same_shapes = start.keys() == expected_start.keys() and all(
        start[name].shape == expected_start[name].shape for name in start
    )
    first = [fault for fault in comparison.broken[:1] if fault.relation == "weights"]
    if not (first and same_shapes):
        return {}
    return {name: expected_start[name] - start[name] for name in first[0].parameters}


def other_frozen(step: Step, expected: Step) -> tuple[str, ...]:
    """The frozen weights, of those with the same name and shape, that are not the reference's."""
    samples, expected_samples = (one.get("untrained", {}) for one in (step, expected))
    names = []
    for name, (values, shape) in samples.items():
        expected_values, expected_shape = expected_samples.get(name, (None, None))
        if shape != expected_shape:
            continue
        if norm({name: values - expected_values}) > ROUNDED * norm({name: expected_values}):
            names.append(name)
    return tuple(names)


def note_frozen(comparison: Compared, names: tuple[str, ...]) -> None:
    """Add to a comparison, for which frozen weights were carried over, that they are others: a
    fault, or a note if the rest has a fault of its own."""
    text = OTHER_FROZEN.format(names=several(names))
    if comparison.broken:
        comparison.notes.append(f"{text}; it was compared with those of the first environment")
        return
    rest = f"{NO_ANSWER}: {comparison.no_answer}" if comparison.no_answer else THE_SAME
    comparison.broken = [Broken("weights", f"{text}; {rest}", parameters=names)]
    comparison.step, comparison.no_answer = 1, ""
