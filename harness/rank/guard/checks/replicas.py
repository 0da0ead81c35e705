"""Copies of a weight that were equal when training began are equal, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..posting.posts import Alarm
from . import together
from .views import Memory, View, groups_of, named


def replicas(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Copies of a weight that were equal when training began are equal, bit by bit."""
    memory.compared["replicas"], unequal = together.unequal_copies(views)
    distances, ranks = dict[str, float](), set()
    for members in copies(views, unequal):
        bits = [view.bits(number) for view, number in members]
        usual = max(dict.fromkeys(bits), key=bits.count)
        model = members[bits.index(usual)]
        for (view, number), value in zip(members, bits):
            if value != usual:
                name, distance = view.described[number].name, 0.0
                sample, usual_sample = view.weights(number), model[0].weights(model[1])
                # Otherwise the samples are of what each rank steps.
                if not view.described[number].master and len(sample) == len(usual_sample) > 0:
                    distance = float((sample - usual_sample).abs().max())
                distances[name] = max(distances.get(name, 0.0), distance)
                ranks.add(view.rank)
    if distances:
        names = sorted(distances, key=lambda name: -distances[name])
        size = distances[names[0]]
        where = f"by up to {size:.2g} in the sample" if size else "in values outside the sample"
        text = f"the copies of {named(names)} are not equal: {where}"
        yield Alarm("replicas", "differ", text, sorted(ranks), size, names)


def copies(
    views: Sequence[View], parameters: Sequence[tuple[View, int]]
) -> Iterator[list[tuple[View, int]]]:
    """Those of some parameters of ranks that are copies of one weight."""
    if not parameters:
        return
    group_of = groups_of(views)
    groups: dict[Any, list[tuple[View, int]]] = {}
    for view, number in parameters:
        assert view.first_bits is not None  # noqa: S101
        described, first = view.described[number], int(view.first_bits[number])
        # In a pipeline each rank may have the whole model, and trains a stage of it. With ZeRO
        # no optimizer has the parameters themselves: those that move are trained.
        if described.optimized or view.bits(number) != first:
            copy = described.name, described.copy, described.optimized
            key = copy, group_of(view, described), first
            groups.setdefault(key, []).append((view, number))
    yield from (members for members in groups.values() if len(members) > 1)
