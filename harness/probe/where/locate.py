"""Finds the place where a BROKEN layout parts from the reference."""

from __future__ import annotations

from harness.probe.compare.comparison import Compared
from harness.probe.where.place import Place, undetermined
from harness.probe.where.stages import stage_of_gradients, stage_of_relation


def locate(comparison: Compared) -> Place:
    """The place where a layout with a broken relation parts from the reference."""
    if (place := stage_of_relation(comparison)) is not None:
        return place
    if comparison.moment is None or len(comparison.moment.ranks) < comparison.layout.world:
        return undetermined(comparison.layout.name, "its ranks were compared one by one")
    return stage_of_gradients(comparison.moment)
