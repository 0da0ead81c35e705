"""Averages of the weights: copies of the model that no optimizer steps. A resume may lose them."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, TypedDict

from harness.rank.probe.findings.saves import Weights, is_tensor, mappings, matching
from harness.rank.probe.recording.parameters import NamedParameters, full, norm
from harness.rank.training.layouts import local

NEAR = 0.5
"""How far a copy is from the weights at most, as a part of their norm: gradients and moments have
the same names and shapes."""


class Copy(TypedDict):
    """What is known of a copy of the model."""

    holder: str
    """The class of the object that has it."""
    is_average: bool
    """Whether the model never had these weights."""
    weights: Weights


class Averages:
    """The copies of the model after the last step."""

    def __init__(self, names: NamedParameters) -> None:
        self._names = names
        self._states: set[tuple[float, ...]] = set()
        """Sums over the weights that the model has had."""

    def note(self) -> None:
        """Note the weights that the model has now."""
        self._states.add(_sums(self._trained()))

    def record(self) -> list[Copy]:
        """The copies. Of those in dictionaries and lists only averages count: the others may be
        anybody's."""
        from torch.nn import Module

        copies, trained = [], self._trained()
        for holder, weights in _copies(trained) if trained else ():
            is_average = _sums(weights) not in self._states
            if is_average or issubclass(holder, Module):
                values = {name: full(local(weight)) for name, weight in weights.items()}
                copies.append(Copy(holder=holder.__name__, is_average=is_average, weights=values))
        return copies

    def _trained(self) -> Weights:
        trained = {name: p for name, p in self._names.items() if p.requires_grad}
        from harness.rank.training.deepspeed import is_partitioned

        # ZeRO 3 has placeholders of weights, and copies of its own.
        return {} if any(map(is_partitioned, trained.values())) else trained


def _copies(trained: Weights) -> Iterator[tuple[type, Weights]]:
    """The copies of these weights that are alive, each once, with the class of what has them."""
    from torch.nn import Module
    from torch.optim import Optimizer

    objects = gc.get_objects()
    kinds = set(map(type, objects))
    modules, steppers = ({k for k in kinds if issubclass(k, base)} for base in (Module, Optimizer))
    optimizers = [each for each in objects if type(each) in steppers]
    stepped = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    places = {local(each).data_ptr() for each in trained.values()}
    size = norm(float(local(each).detach().norm()) for each in trained.values())
    for holder in objects:
        if type(holder) not in modules and not _begins_with_tensor(holder, len(trained)):
            continue
        for _, tensors in mappings(holder, trained, deep=1):
            weights = matching(tensors, trained)
            pairs = [(local(weight), local(trained[name])) for name, weight in weights.items()]
            # One without values is on the meta device, or a view of memory that FSDP has freed;
            # one of another shape is the whole of what this rank has a shard of.
            if any(
                mine.is_meta
                or (mine.numel() and not mine.untyped_storage().nbytes())
                or mine.shape != other.shape
                for mine, other in pairs
            ):
                continue
            begin = {mine.data_ptr() for mine, _ in pairs}
            is_copy = not begin & places and stepped.isdisjoint(map(id, weights.values()))
            if not (weights and is_copy):
                continue
            if norm(float((full(one) - full(other)).norm()) for one, other in pairs) <= NEAR * size:
                places |= begin
                yield type(holder), weights


def _begins_with_tensor(value: Any, count: int) -> bool:
    """Whether it is a dictionary or a list of at least so many entries, the first one a tensor: to
    ask all entries of all objects would take seconds."""
    if type(value) not in (dict, OrderedDict, list, tuple) or len(value) < count:
        return False
    return is_tensor(next(iter(value.values() if hasattr(value, "values") else value)))


def _sums(weights: Weights) -> tuple[float, ...]:
    return tuple(float(local(weights[name]).detach().double().sum()) for name in sorted(weights))
