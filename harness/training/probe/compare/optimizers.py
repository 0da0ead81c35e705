"""The optimizers have what is trained: a note on the reference, and the relation of a layout."""

from __future__ import annotations

from collections.abc import Collection, Iterator

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
        purpose = ". No fault if the others are trained alone on purpose"
        yield _sentence(step, unheld) + ("" if step["strangers"] else purpose)


def why_without_gradient(step: Step) -> str:
    """Why an optimizer has no gradient, though the model has; empty if that is not known."""
    return _sentence(step, step["unheld"]) if step.get("unheld") else ""


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
        if names := [name for name in step.get("unheld", ()) if name in moved]:
            text = f"rank {rank}: {_sentence(step, names)}"
            return Broken(RELATION, text, parameters=tuple(names), ranks=(rank,))
    return None


def _sentence(step: Step, names: Collection[str]) -> str:
    """A sentence on parameters that no optimizer has, with the reason if it is known."""
    verb = "gets gradients and stays as it is" if len(names) == 1 else "get gradients and stay"
    text = f"{UNHELD} {several(names)}, which {verb}"
    if step["empty"]:
        return f"{text}: the optimizer has no parameters. Were they frozen when it was made?"
    if step["strangers"]:
        strangers = f"{count(step['strangers'], 'tensor')} without a gradient that no model uses"
        return f"{text}: the optimizer has {strangers}: {STALE}"
    return text
