"""What the samplers of a loader say of the rows that they will give."""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import torch

from ...training import callers

MOST_OBJECTS = 64
"""Objects of a sampler among which those that it wraps are searched: a limit of time."""

OTHERS = (torch.Tensor, torch.nn.Module, type, ModuleType)
"""What is no sampler, and may have many attributes."""
PLAIN = (int, float, str)


def batches_of(iterator: Any) -> int | None:
    """The batches of an epoch; None if nobody says."""
    try:
        return len(iterator._index_sampler)
    except Exception:  # a stranger's code
        return None


def chain(iterator: Any) -> Iterator[Any]:
    """The samplers of an iterator, one within the other."""
    sampler = getattr(iterator, "_index_sampler", None)
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)


def draws_again(iterator: Any) -> bool:
    """Whether rows come several times on purpose."""
    return any(getattr(sampler, "replacement", False) is True for sampler in chain(iterator))


def is_installed(iterator: Any) -> bool:
    """Whether all samplers are those of installed packages: one of the user's own may give a batch
    again on purpose."""
    modules = [sys.modules.get(type(one).__module__) for one in chain(iterator)]
    files = [getattr(module, "__file__", None) or "" for module in modules]
    return all(map(callers.is_installed, files))


def shuffles(iterator: Any) -> bool:
    """Whether a sampler says that each epoch has another order."""
    return any(
        getattr(sampler, "shuffle", False) is True or type(sampler).__name__ == "RandomSampler"
        for sampler in chain(iterator)
    )


def told_epochs(iterator: Any) -> list[Any]:
    """What ``set_epoch`` has set in the samplers of an iterator, and in those that they wrap, whose
    rows depend on that, as their code says. torch's own are known, and not among them."""
    waiting, visited = deque(chain(iterator)), {id(getattr(iterator, "_dataset", None))}
    told = []
    while waiting and len(visited) < MOST_OBJECTS:
        owner = waiting.popleft()
        attributes = getattr(owner, "__dict__", None)
        if id(owner) in visited or isinstance(owner, OTHERS) or not isinstance(attributes, dict):
            continue
        visited.add(id(owner))
        if any("shuffle" in name and value is False for name, value in attributes.items()):
            return []
        values = [(name, attributes.get(name)) for name in sorted(names_of_epoch(type(owner)))]
        if values and all(value is None or isinstance(value, PLAIN) for _, value in values):
            told.append((type(owner), values))
        waiting += attributes.values()
    return told


def names_of_epoch(kind: type) -> frozenset[str]:
    """The attributes that ``set_epoch`` of a class sets, and that its iteration reads."""
    setter, iteration = getattr(kind, "set_epoch", None), getattr(kind, "__iter__", None)
    if kind.__module__.startswith("torch.") or setter is None or iteration is None:
        return frozenset()
    stored = {
        instruction.argval
        for code in _codes(setter)
        for instruction in dis.get_instructions(code)
        if instruction.opname == "STORE_ATTR"
    }
    read: set[str] = set()
    waiting, visited = [iteration], {"set_epoch", "__iter__"}
    while waiting:
        for code in _codes(waiting.pop()):
            read.update(code.co_names)
        for name in read - visited:
            visited.add(name)
            method = getattr(kind, name, None)
            method = getattr(method, "fget", None) or method
            if hasattr(method, "__code__"):
                waiting.append(method)
    return frozenset(stored & read)


def _codes(function: Any) -> Iterator[CodeType]:
    """The code of a function, and of those within it."""
    code = getattr(function, "__code__", None)
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
