"""The arithmetic of right training, for numbers, arrays of numpy and tensors of torch alike.

It imports neither numpy nor torch: it uses only operators that both have. So a detector in a
training and a report in a process without torch judge by the same formulas. Vectors have one
dimension, and are best in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MOVED = 0.5
"""The least share of the values with a gradient that a step should move, in bf16 and fp16."""

ELSEWHERE = 0.02
"""If less than this part of a vector has another direction, it is the right one times a factor."""

NOISE = 1e-6
"""How far (as a fraction) equal learning rates may be apart by rounding: fp32 rounds by 6e-8."""


class Projection(NamedTuple):
    """A vector compared with the right one."""

    ratio: float
    """How many times the right one is in it, along its direction; NaN if that is 0."""
    right: float
    """The norm of the right one."""
    got: float
    beside: float
    """The norm of what it has in other directions."""

    @property
    def aside(self) -> float:
        """The part (0 to 1) of it that has other directions."""
        return self.beside / self.got if self.got else 0.0

    @property
    def is_factor(self) -> bool:
        """Whether it is a multiple of the right one; also if the right one is 0."""
        return not self.right or self.aside < ELSEWHERE

    @property
    def cosine(self) -> float:
        """The cosine of the angle between the two; 0 if one of them is 0."""
        return self.ratio * self.right / self.got if self.right and self.got else 0.0


def projection(got: Any, right: Any) -> Projection:
    """Split a vector into a multiple of the right one and a remainder."""
    square = float(right @ right)
    ratio = float(got @ right) / square if square else math.nan
    remainder = got - ratio * right if square else got
    return Projection(ratio, math.sqrt(square), _norm(got), _norm(remainder))


def _norm(vector: Any) -> float:
    return math.sqrt(float(vector @ vector))


def step_by_formula(
    kind: str, group: Mapping[str, Any], weights: Any, gradient: Any, state: Mapping[str, Any]
) -> Any:
    """The step that the documentation of ``torch.optim`` describes for SGD, Adam and AdamW.

    ``kind`` is the name of the class, ``group`` has its settings, and ``state`` is what the
    optimizer had kept before the step: empty at the first one. None for another optimizer, and for
    AMSGrad.
    """
    rate, decay = float(group["lr"]), float(group.get("weight_decay", 0))
    gradient = -gradient if group.get("maximize") else gradient
    is_apart = kind == "AdamW" or bool(group.get("decoupled_weight_decay"))
    if decay and not is_apart:
        gradient = gradient + decay * weights
    if kind == "SGD":
        if momentum := group.get("momentum", 0):
            buffer = state.get("momentum_buffer")
            contribution = gradient * (1 - group.get("dampening", 0))
            buffer = gradient if buffer is None else momentum * buffer + contribution
            gradient = gradient + momentum * buffer if group.get("nesterov") else buffer
        return -rate * gradient
    if kind not in ("Adam", "AdamW") or group.get("amsgrad") or "betas" not in group:
        return None
    (beta1, beta2), count = group["betas"], state.get("step", 0.0) + 1
    mean = beta1 * state.get("exp_avg", 0.0) + (1 - beta1) * gradient
    square = beta2 * state.get("exp_avg_sq", 0.0) + (1 - beta2) * gradient**2
    root = (square / (1 - beta2**count)) ** 0.5 + group["eps"]
    step = -rate * mean / (1 - beta1**count) / root
    return step - rate * decay * weights if decay and is_apart else step


def begins_with_jump(rates: Sequence[float], times: float = 1 + NOISE) -> bool:
    """Whether the first learning rate is more than ``times`` the second, and the third one is
    higher again. No schedule does that: the first step was taken without it."""
    if len(rates) < 3:
        return False
    first, second, third = rates[:3]
    return first > times * second and third > (1 + NOISE) * second


def count_moved(values: Iterable[tuple[Any, Any]]) -> tuple[int, int]:
    """How many of the values that have a gradient a step moved, and how many have one.

    For each tensor there are two masks: where the step moved it, and where it has a gradient.
    """
    counts = [(int((moves & has).sum()), int(has.sum())) for moves, has in values]
    return sum(moves for moves, _ in counts), sum(total for _, total in counts)
