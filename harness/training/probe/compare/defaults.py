"""What a script sets, or leaves to its packages, in two environments."""

from __future__ import annotations

from collections.abc import Iterator

from harness.training.probe.runner import Step

PRECISIONS = {0.0: "32 bits or more", 2.0**-7: "bf16", 2.0**-10: "fp16"}
"""By one ulp of 1 in the coarsest type of what modules return."""


def other_defaults(step: Step, expected: Step) -> Iterator[str]:
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
