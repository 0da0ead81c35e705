"""What a training sets, or leaves to the defaults of its packages, in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.rank.probe.exchange import Step
from harness.system.text import count

RATES = ("lr", "initial_lr")
"""The settings that are compared in each step."""

Group = Mapping[str, Any]
"""A group of an optimizer's parameters, with its settings."""


def of_groups(groups: Sequence[Group]) -> dict[str, Any]:
    """The settings that are numbers, or pairs of them, if they are equal in all of an optimizer's
    groups."""
    settings, *others = map(_numbers, groups)
    return {} if any(group != settings for group in others) else settings


def of_training(root: Any, groups: Sequence[Group], step: Step) -> dict[str, str]:
    """The settings of the first step, by name, in words: of the optimizer, of clipping and the loss
    scale, and of the model (its dropout, attention, and types)."""
    parts = list(root.modules()) if root is not None else []
    rates = {*step.rates, *(part.p for part in parts if drops(part))}
    types = Counter(
        str(p.dtype).removeprefix("torch.") for part in parts[:1] for p in part.parameters()
    )
    limits = {by_value: limit for limit, _, by_value in reversed(step.clips)}  # the first ones
    norm, value = (
        f"{limit:g}" if math.isfinite(limit := limits.get(by_value, math.inf)) else "none"
        for by_value in (False, True)
    )
    words = {
        **_by_group(groups),
        "the norm to which clip_grad_norm_ clips": norm,
        "the value to which clip_grad_value_ clips": value,
        "the first loss scale": f"{step.scale:g}" if step.scale else "1 (no scaler)",
        "dropout": ", ".join(f"{rate:g}" for rate in sorted(rates)) or "0",
        "the type of the parameters": _in_words(types),
    }
    configs = (vars(part).get("config") for part in parts)
    attention = (getattr(config, "_attn_implementation", None) for config in configs)
    if names := sorted({name for name in attention if isinstance(name, str)}):
        words["the implementation of attention"] = ", ".join(names)
    return words


def _numbers(group: Group) -> dict[str, Any]:
    """The settings that are a number, or a pair of them; not the names of parameters."""
    numbers: dict[str, Any] = {}
    for name, setting in group.items():
        value = tuple(setting) if isinstance(setting, list) else setting
        values = value if isinstance(value, tuple) else (value,)
        if name != "params" and values and all(isinstance(one, (int, float)) for one in values):
            numbers[name] = value
    return numbers


def _by_group(groups: Sequence[Group]) -> dict[str, str]:
    """The settings of an optimizer; of those that differ by group, for how many parameters."""
    settings = [_numbers(group) for group in groups]
    sizes = [len(group["params"]) for group in groups]
    words = {}
    for name in dict.fromkeys(name for each in settings for name in each if name not in RATES):
        values: Counter[str] = Counter()
        for each, size in zip(settings, sizes, strict=True):
            values[str(each.get(name, "not set"))] += size
        words[name] = _in_words(values)
    return words


def _in_words(values: Counter[str]) -> str:
    """A value; several with the number of their parameters."""
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{v} for {count(n, 'parameter')}" for v, n in sorted(values.items()))


def drops(part: Any) -> bool:
    """Whether it is a dropout with a rate: what else has the name may have any ``p``."""
    rate = getattr(part, "p", None)
    return "Dropout" in type(part).__name__ and isinstance(rate, float) and rate > 0
