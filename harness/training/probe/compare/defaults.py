"""What a script sets, or leaves to its packages, in two environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.training.probe.runner import Step

ABSENT = "not set"


def other_defaults(step: Step, expected: Step) -> Iterator[str]:
    """Sentences about the settings of the first step that differ from the reference's."""
    if step["optimizer"] != expected["optimizer"]:
        yield f"the optimizer is {step['optimizer']}; in the reference {expected['optimizer']}"
    settings, others = _settings(step), _settings(expected)
    for name in dict.fromkeys([*others, *settings]):
        value, reference_value = settings.get(name, ABSENT), others.get(name, ABSENT)
        if value != reference_value and ABSENT not in (value, reference_value):
            yield f"{name} is {value}; in the reference {reference_value}"
    coarse = bool(step.get("coarse")), bool(expected.get("coarse"))
    if coarse[0] != coarse[1]:
        kind, reference_kind = ("in 16 bits" if each else "not in 16 bits" for each in coarse)
        yield f"the model computes {kind}; in the reference {reference_kind}"


def _settings(step: Step) -> dict[str, Any]:
    """The optimizer's numbers, but the learning rate, which is compared in each step; and the norm
    to which it clips itself."""
    group: Mapping[str, Any] = step["group"]
    numbers = {name: value for name, value in group.items() if name not in ("lr", "initial_lr")}
    return numbers | {"the norm to which gradients are clipped": step["clipping"]}
