"""The lane of a run, and how many trials fit on it at once."""

from __future__ import annotations

from harness.api.spec import Lane, Scenario
from harness.system import machine
from harness.system.errors import Unsupported


def choose_lane(scenario: Scenario, ranks: int, asked: str, nodes: int = 1) -> Lane:
    """The lane to run ``ranks`` ranks on, split over nodes like this one.

    Raises Unsupported, with the reason, if there is none.

    ``auto`` considers the variant with the most ranks, so that all variants run on one lane.
    """
    if asked == "auto":
        widest = max(scenario.ranks_of(variant) for variant in scenario.variants) / nodes
        roomy = Lane.GPU in scenario.lanes and len(machine.gpus()) >= widest
        asked = "gpu" if roomy or Lane.CPU not in scenario.lanes else "cpu"
    lane = Lane(asked)
    if lane not in scenario.lanes:
        raise Unsupported(f"does not run on the {lane} lane")
    if lane is Lane.GPU and len(machine.gpus()) < (on_each := ranks // nodes):
        needed = "1 GPU" if on_each == 1 else f"{on_each} GPUs"
        raise Unsupported(f"needs {needed}, and this machine has {len(machine.gpus())}")
    return lane


def room(lane: Lane, ranks: int, threads: int) -> int:
    """How many trials of ``ranks`` ranks this machine can run at once; at least 1."""
    if lane is Lane.GPU:
        return max(1, len(machine.gpus()) // ranks)
    return max(1, machine.cores() // (ranks * threads))
