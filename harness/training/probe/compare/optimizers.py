"""The optimizers have what is trained: a note on the reference, and the relation of a layout."""

from __future__ import annotations

from collections.abc import Iterator

from harness.system.text import count, several
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.reference import Moment
from harness.training.probe.runner import Step

UNHELD = "no optimizer has"
"""How the note begins: by these words a recorded note is recognised."""

UNSTEPPED = "an optimizer never steps"
"""How the note begins."""

RELATION = "optimizer's parameters"

STALE = "was it made before the model was wrapped, sharded or replaced?"


def note_on_unheld(step: Step) -> Iterator[str]:
    """A note on parameters of the reference that get gradients and stay as they are, because no
    optimizer has them, or because theirs never steps."""
    idle, steps = step.get("unstepped", ((), 0))
    if idle:
        yield (
            f"{UNSTEPPED}, although the others take {steps} steps and {several(idle)} get "
            "gradients. No fault if it steps seldom on purpose"
        )
    if unheld := step.get("unheld"):
        verb = "gets gradients and stays as it is" if len(unheld) == 1 else "get gradients and stay"
        text = f"{UNHELD} {several(unheld)}, which {verb}"
        if strangers := step["strangers"]:
            yield f"{text}: {_has(strangers)}: {STALE}"
        else:
            yield f"{text}. No fault if the others are trained alone on purpose"


def why_without_gradient(step: Step) -> str:
    """Why an optimizer has no gradient, though the model has; empty if that is not known."""
    if not step.get("unheld"):
        return ""
    gets = f"{several(step['unheld'])} get gradients"
    if step["empty"]:
        return f"the optimizer has no parameters, while {gets}: were they frozen when it was made?"
    return f"{_has(step['strangers'])}, while {gets}: {STALE}"


def unheld(moment: Moment) -> Broken | None:
    """An optimizer has what the reference's has."""
    if not moment.is_first:
        return None
    moved = {  # by the reference's optimizer
        name
        for step in moment.reference.steps
        for name, update in step["update"].items()
        if update.any()
    }
    for rank, step in enumerate(moment.ranks):
        names = [name for name in step.get("unheld", ()) if name in moved]
        if names:
            gets = "gets gradients and never moves" if len(names) == 1 else "get gradients and stay"
            text = f"rank {rank}: no optimizer has {several(names)}, which {gets}"
            if step["strangers"]:
                text += f": {_has(step['strangers'])}: {STALE}"
            return Broken(RELATION, text, parameters=tuple(names), ranks=(rank,))
    return None


def _has(strangers: int) -> str:
    return f"the optimizer has {count(strangers, 'tensor')} without a gradient that no model uses"
