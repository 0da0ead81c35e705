"""Why the numbers of a step are not finite, as far as its records show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.bugs.api.numbers import finite
from harness.rank.compare import Named, length, norm
from harness.training.probe.compare.faults import several
from harness.training.probe.runner import Step

LARGE = 1e6
"""A weight above this was hardly initialised."""


def reason(step: Step) -> str:
    """Why nothing can be compared with this step of a reference; empty if it is finite."""
    if not finite(norm(step["raw"] or {})) or not finite(norm(step["grad"])):
        return "; ".join(["its first gradients are not finite", *_of_gradients(step)])
    if not finite(norm(step["update"])):
        return "; ".join([*_of_update(step)])
    return ""


def _of_gradients(step: Step) -> Iterator[str]:
    """The known causes of gradients that are not finite, the first one first."""
    if lost := [name for name, largest in step["largest"].items() if not largest < LARGE]:
        greatest = max((step["largest"][name] for name in lost), key=abs)
        yield (
            f"the weights {several(lost)} have values up to {greatest:.3g} before the first step. "
            "Are all weights initialised?"
        )
    place, losses = step["infinite"], [loss for loss in step["losses"] if not finite(loss)]
    if losses and "the gradient" in place:
        yield f"its loss is {losses[0]}, although the outputs of all modules are finite"
    elif place:
        yield f"the first that is not finite is {place}"
    else:
        off = _infinite(step["raw"] or step["grad"])
        yield f"the outputs of all modules are finite, the gradients of {several(off)} are not"
    if "in fp16" in place and not step["scaled"]:
        yield "no scaler of the loss skips this step, as torch.amp.GradScaler does"


def _of_update(step: Step) -> Iterator[str]:
    """Why the optimizer's step is not finite although its gradients are."""
    kind, off = step["optimizer"], _infinite(step["update"])
    yield f"its first step is not finite, although its gradients are: {kind}, {several(off)}"
    if state := _infinite(step.get("state", {})):
        yield f"before the step the optimizer's state was not finite: {several(state)}"
    if step["skipped"] and step["fresh"]:
        yield (
            f"the scaler of the loss had skipped {step['skipped']} steps, and what a skipped first "
            f"step leaves in the state of {kind} is used: a fault of the optimizer (torch 2.13.0 "
            "has it in SGD with momentum and fused=True)"
        )


def _infinite(tensors: Named | Mapping[str, Any]) -> list[str]:
    return [name for name, tensor in tensors.items() if not finite(length(tensor))]
