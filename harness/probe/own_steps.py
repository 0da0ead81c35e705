"""Is the reference's own way of taking steps plausible? No comparison of layouts shows it if not.

Both questions have an answer that needs no second run: a schedule does not begin with a jump, and
SGD's first step is its rate times the gradient, clipped to the norm that it is to be clipped to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.facts.numbers import near
from harness.probe.numbers import norm, share
from harness.probe.runs import Step

FALLS, APPLIED_FIRST = "the learning rate falls", "the first step applied"
"""How the notes begin: by these words a recorded note is recognised, however it goes on."""

JUMP = 1.5
"""How many times the second rate the first one may be, if the third one is higher again."""

APPLIED = 0.01
"""How far the applied gradient may be from the right one, as a part of it; bf16 included."""

PLAIN = {"weight_decay": 0, "dampening": 0, "maximize": False, "nesterov": False}
"""The settings of an SGD whose first step is its rate times the gradient."""


def notes(steps: Sequence[Step]) -> Iterator[str]:
    """One line for each thing that is odd in the reference's own steps."""
    yield from _jump([step["lr"][0] for step in steps])
    yield from _applied(steps[0])


def _jump(rates: Sequence[float]) -> Iterator[str]:
    """A warmup that begins with the second step."""
    if len(rates) < 3:
        return
    first, second, third = rates[:3]
    if first > JUMP * second and third > second:
        yield (
            f"{FALLS} from {first:.4g} to {second:.4g} after the first step, and "
            f"then rises to {third:.4g}: the first step was not taken with the schedule's rate"
        )


def _applied(step: Step) -> Iterator[str]:
    """A first step of SGD that is not the gradient, clipped as it was asked for."""
    group, clipping = step["group"], step["clipping"]
    if step["optimizer"] != "SGD" or not clipping or not group["lr"]:
        return
    if any(group.get(name, value) != value for name, value in PLAIN.items()):
        return
    size = norm(step["grad"])
    right = min(1.0, clipping / size) if size else 1.0
    found = share(step["update"], {n: -group["lr"] * g for n, g in step["grad"].items()})
    if not near(found.ratio, right, share=APPLIED):
        yield (
            f"{APPLIED_FIRST} {found.ratio:.4g} times the gradient of norm {size:.4g}; "
            f"clipping to {clipping:.4g} leaves {right:.4g} times: all layouts have that"
        )
