"""Copies of a weight that were equal when training began are equal, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import together
from .views import Alarm, Memory, View, groups_of, named


def _copies(views: Sequence[View]) -> Iterator[list[tuple[View, int]]]:
    """The groups of ranks, each with the number of a parameter, that have copies of one weight."""
    group_of = groups_of(views)
    groups: dict[Any, list[tuple[View, int]]] = {}
    for view in views:
        if view.first_bits is None:
            continue
        for number in view.numbers:
            described = view.described[number]
            # In a pipeline each rank may have the whole model, and trains a stage of it. With ZeRO
            # no optimizer has the parameters themselves: those that move are trained.
            if not described.optimized and view.bits(number) == int(view.first_bits[number]):
                continue
            group, bits = group_of(view, described), int(view.first_bits[number])
            key = described.copy, described.optimized, group, bits
            groups.setdefault(key, []).append((view, number))
    for members in groups.values():
        if len(members) > 1:
            yield members


def replicas(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Copies of a weight that were equal when training began are equal, bit by bit."""
    equal = together.equal_copies(views)
    if equal is not None:
        memory.compared["replicas"] = equal
        return
    distances, ranks, compared = dict[str, float](), set(), 0
    for members in _copies(views):
        compared += 1
        bits = [view.bits(number) for view, number in members]
        usual = max(dict.fromkeys(bits), key=bits.count)
        model = members[bits.index(usual)]
        for (view, number), value in zip(members, bits):
            if value != usual:
                name = view.described[number].name
                distance = _distance(view, number, *model)
                distances[name] = max(distances.get(name, 0.0), distance)
                ranks.add(view.rank)
    memory.compared["replicas"] = compared
    if distances:
        names = sorted(distances, key=lambda name: -distances[name])
        size = distances[names[0]]
        where = f"by up to {size:.2g} in the sample" if size else "in values outside the sample"
        text = f"the copies of {named(names)} are not equal: {where}"
        yield Alarm("replicas", "differ", text, sorted(ranks), size, names)


def _distance(view: View, number: int, second_view: View, other_number: int) -> float:
    if view.described[number].master:
        return 0.0  # the samples are of what each rank steps
    mine, theirs = view.weights(number), second_view.weights(other_number)
    if len(mine) != len(theirs) or not len(mine):
        return 0.0
    return float((mine - theirs).abs().max())
