"""Whose gradients did the owners of a tied weight step with, and was each step the optimizer's?

Beside a training in replicated pipeline stages, as in ``tied_embedding_order``, plain torch
computes the gradients g0 to g3 of the tied weight's copies at the same weights, and those of all
other weights. What a rank's optimizer owns must be the mean over the replicas, for the tied weight
summed over the stages. The weights must move as plain AdamW moves them with what their owners have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.megatron_core._tied_layout import RANKS, REPLICAS, misplaced

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 1e-3
"""How far (as a fraction) a gradient may be from plain torch's: fp32 rounding moves it by 1e-6."""

DISTANCE = 1e-5
"""How far weights, and losses in nats, may be from plain torch's. fp32 rounding moved the weights
by up to 3e-7 in twenty steps; the bug moves them by 1e-2 in the first step."""

NONE = "none"
_ALL = api.held(dict.fromkeys([NONE, *(f"g{n}" for n in range(RANKS))], api.SIZE))


def _missed(value: Any) -> str:
    """What is wrong with ``missed``, which must have all names or none."""
    return "" if value == {} else _ALL(value)


FACTS: api.Facts = {
    "missed": _missed,
    "others_off": api.SIZE,
    "weights_off": api.SIZE,
    "plain_loss": api.SIZE,
}
"""What ``plain`` records of a step. ``missed`` has, by whose gradient is left out, how far the
rank's part of the tied gradient is from that sum; it is empty if the rank owns no part.
``others_off`` is the greatest distance of its other gradients from the right ones, ``weights_off``
the greatest distance of its weights from where plain AdamW moves them."""


def off(tensor: Tensor, expected: Tensor) -> float:
    """The distance as a fraction of the right value."""
    return float((tensor - expected).norm() / (expected.norm() or 1.0))


def missed(owned: Tensor, parts: Sequence[Tensor]) -> dict[str, float]:
    """How far the owned part is from the mean of all parts, and from the means without one part."""
    if not owned.numel():
        return {}
    mean = sum(parts[1:], parts[0]) / REPLICAS
    without = {f"g{n}": off(owned, mean - part / REPLICAS) for n, part in enumerate(parts)}
    return {NONE: off(owned, mean), **without}


def missed_by(step: api.Record) -> str | None:
    """The gradient that a rank's part of the tied gradient misses: ``g2``, or ``none``.

    With the documented bug it is a gradient of the other stage. None if nothing explains the part.
    """
    stage = step["rank"] // REPLICAS
    names = [NONE, *(f"g{n}" for n in range(RANKS) if n // REPLICAS != stage)]
    return next((n for n in names if api.near(step["missed"][n], 0.0, within=SHARE)), None)


def missing(records: api.Records) -> Mapping[int, str]:
    """By rank, the gradient that it missed at the first step; without ranks that missed none."""
    steps = [s for s in records.of("step") if s["step"] == 1 and s.get("missed")]
    return {s["rank"]: name for s in steps if (name := missed_by(s)) not in (None, NONE)}


def otherwise_wrong(records: api.Records) -> api.Finding | None:
    """At some step something was wrong that no missed gradient explains: never documented."""
    lines = [(step, line) for step in records.of("step") for line in _faults(step)]
    for rank, line in misplaced(records):
        lines += [(step, line) for step in records.of("step", rank)[:1]]
    if not lines:
        return None
    start = min(step["step"] for step, _ in lines)
    faults = [(step["rank"], line) for step, line in lines if step["step"] == start]
    ranks = tuple(dict.fromkeys(rank for rank, _ in faults))
    return api.Finding("\n".join(line for _, line in faults), start, (), ranks, documented=False)


def distance(ours: api.Record | None, theirs: api.Record | None) -> float:
    """The greatest difference between two records ``weight``; NaN if one is missing, if the sizes
    differ, or if one has a NaN."""
    if not ours or not theirs or len(ours["values"]) != len(theirs["values"]):
        return math.nan
    far = [abs(a - b) for a, b in zip(ours["values"], theirs["values"], strict=True)]
    return max(far, key=lambda d: (math.isnan(d), d))  # max alone ignores NaNs


def _faults(step: api.Record) -> Iterator[str]:
    if "missed" not in step:  # one process
        return
    where = f"step {step['step']}, rank {step['rank']}:"
    if step["loss"] is not None and not api.near(step["loss"], step["plain_loss"], within=DISTANCE):
        yield f"{where} its loss is {step['loss']:.6f}, but plain torch's {step['plain_loss']:.6f}"
    if step["missed"] and missed_by(step) is None:
        yield (
            f"{where} it steps the tied weight neither with the mean gradient of all nor with that "
            f"without one of the other stage's: {step['missed'][NONE]:.3g} of it is something else"
        )
    if not api.near(step["others_off"], 0.0, within=SHARE):
        yield (
            f"{where} it steps another weight with a gradient that is off by "
            f"{step['others_off']:.3g} of the replicas' mean"
        )
    if not api.near(step["weights_off"], 0.0, within=DISTANCE):
        yield (
            f"{where} its weights are up to {step['weights_off']:.3g} from where AdamW has them "
            "with their owners' gradients"
        )
