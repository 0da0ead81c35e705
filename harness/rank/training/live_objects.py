"""Reads attributes of live objects of this process, without a call of their code."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from ...system.conditions import holds
from .layouts import living

MISSING = object()
"""The value of what is not there."""

OR = " or "
"""Between names of classes, one of which is enough."""

Attributes = Mapping[str, Mapping[str, Any]]
"""The conditions for attributes, by their path, such as ``args.label_smoothing_factor``."""


def objects(names: Iterable[str]) -> dict[str, list[Any]]:
    """The live objects of each class, by the class's full name: none if this process has not
    imported its module. ``names`` may have several, with OR between them."""
    kinds: dict[str, type] = {}
    objects_by_kind: dict[str, list[Any]] = {}
    for name in {name for several in names for name in several.split(OR)}:
        module, _, class_name = name.rpartition(".")
        kind = getattr(sys.modules.get(module), class_name, None)
        if isinstance(kind, type):
            kinds[name] = kind
        if isinstance(kind, type) or module not in sys.modules:
            objects_by_kind[name] = []
    bases = tuple(kinds.values())
    for candidate in living(lambda kind: issubclass(kind, bases)) if kinds else ():
        for name, base in kinds.items():
            objects_by_kind[name] += [candidate] if issubclass(type(candidate), base) else []
    return objects_by_kind


def is_met(
    rules: Mapping[str, Attributes], live: Mapping[str, list[Any]], callers: Collection[str]
) -> bool | None:
    """Whether the process has, of each class, an object that meets all conditions, and the code of
    each module runs this step. None if that cannot be said: a class has moved, or its objects have
    no such attribute."""
    answers = [
        _any(
            name in callers
            if name in sys.modules
            else _any(_meets(one, attributes) for one in live[name])
            if name in live
            else None
            for name in several.split(OR)
        )
        for several, attributes in rules.items()
    ]
    if False in answers:
        return False
    return None if None in answers else True


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Whether one of the answers is True; None if it may be."""
    collected = set(answers)
    if True in collected:
        return True
    return None if None in collected else False


def _meets(owner: Any, attributes: Mapping[str, Any]) -> bool | None:
    answer: bool | None = True
    for path, condition in attributes.items():
        value = attribute(owner, path)
        words = condition if isinstance(condition, dict) else {}
        if "exists" in words:
            condition, value = True, value is not MISSING
        elif "differs" in words:
            second = attribute(owner, words["differs"])
            condition, value = True, MISSING if MISSING in (value, second) else value != second
        elif "none" in words:
            condition = None
        if value is MISSING and "has" not in words:
            answer = None
        elif not holds(words.get("has", condition), value):
            return False
    return answer


def attribute(value: Any, path: str) -> Any:
    """The value of an attribute of an attribute, from the objects' dictionaries: a property of a
    stranger could do anything. Of a dictionary or a tuple, its item; of a tensor, only whether it
    requires a gradient. MISSING if there is none."""
    for name in path.split("."):
        if type(value) is dict:
            value = value.get(name, MISSING)
            continue
        if type(value) in (list, tuple):
            value = value[int(name)] if name.isdigit() and int(name) < len(value) else MISSING
            continue
        if issubclass(type(value), torch.Tensor):  # isinstance would ask a lazy object
            with torch._C.DisableTorchFunctionSubclass():  # the code of its class does not run
                return value.requires_grad if name == "requires_grad" else MISSING
        attributes = getattr(value, "__dict__", {})
        parts = (attributes.get(kind) for kind in ("_modules", "_parameters"))
        holders = [attributes, *(part for part in parts if isinstance(part, dict))]
        holder = next((one for one in holders if name in one), None)
        if holder is not None:
            value = holder[name]
        else:
            values = (vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind))
            value = next(values, MISSING)
            if hasattr(type(value), "__get__"):
                return MISSING
        if value is MISSING:
            return MISSING
    return value
