"""Stored cells: one file in the cache for each, named by a digest of its inputs.

The inputs are all that its status depends on: the overlay, the scenario's parameters, the lane,
torch, and our own code. The file also contains them, and a digest of its content. Both are compared
before the cell is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from harness import catalog
from harness.api.spec import Lane
from harness.catalog.code import digest
from harness.config.run_config import SLURM, RunConfig
from harness.launch import lanes
from harness.overlays import overlay
from harness.sweep.cell import Cell
from harness.system import machine
from harness.system.errors import Unsupported
from harness.system.files import write_whole, writing
from harness.system.text import warn_once
from harness.upstream import pins

FORMAT = 4
"""Increase it when older cells must not be used any more."""


T = TypeVar("T")


def inputs_of(config: RunConfig, stack: pins.Stack) -> dict[str, Any]:
    """All that the status of a cell depends on, as plain JSON values."""
    here = machine.facts()
    inputs: dict[str, Any] = {
        "format": FORMAT,
        "scenario": config.scenario,
        "pins": dict(stack.pins),
        "overlay": overlay.key(stack),
        "params": asdict(config.params),
        "seed": config.seed,
        "threads": config.launch.threads,
        "lane": str(lane_of(config)),
        "python": here["python"],
        "torch": here["torch"],
        "code": code(config.scenario),
    }
    if config.launch.nodes > 1:
        inputs["nodes"] = config.launch.nodes
    plain: dict[str, Any] = json.loads(json.dumps(inputs))
    return plain


def lane_of(config: RunConfig) -> Lane | None:
    """The lane that a run of this config takes here, or on a node; None if none is supported."""
    scenario = catalog.scenario(config.scenario)
    if config.on.where == SLURM:  # this machine may have no GPU
        lane = Lane(config.launch.lane)
        return lane if lane in scenario.lanes else None
    try:
        launch, ranks = config.launch, scenario.ranks_of("released")
        return lanes.choose_lane(scenario, ranks, launch.lane, launch.nodes)
    except Unsupported:
        return None


@cache
def code(scenario: str) -> str:
    """A digest of our own code that the status of a scenario's cells depends on."""
    ours = (
        "harness.runs.rank",
        "harness.launch.launch",
        "harness.runs.grade",
        "harness.launch.forkserver",
    )
    return digest(catalog.places()[scenario], *ours)


def read(cache: Path, inputs: Mapping[str, Any]) -> Cell | None:
    """The stored cell of exactly these inputs; None if there is no valid one."""
    return read_as(Cell.from_json, cache, inputs)


def read_as(parsed: Callable[[Any], T], cache: Path, inputs: Mapping[str, Any]) -> T | None:
    """What is stored under exactly these inputs, parsed; None if there is nothing valid.

    ``parsed`` raises ValueError, KeyError or TypeError for content that is not valid.
    """
    for folder in (cache / "cells", machine.own_folder(cache, "cells")):
        file = _file(folder, inputs)
        try:
            return parsed(_checked(json.loads(file.read_text(encoding="utf-8")), inputs))
        except OSError:
            continue  # it does not exist, or we may not read it
        except (ValueError, KeyError, TypeError, RecursionError):
            warn_once(f"{file} is damaged: its release is tested again")
    return None


def _checked(content: Any, inputs: Mapping[str, Any]) -> Any:
    """The cell in a file, as JSON; raises ValueError, KeyError or TypeError if the file is not
    valid."""
    if content["inputs"] != inputs:
        raise ValueError("the cell of other inputs")
    return content["cell"]


def store(cache: Path, inputs: Mapping[str, Any], cell: Cell) -> None:
    """Store a cell under its inputs."""
    store_json(cache, inputs, cell.to_json())


def store_json(cache: Path, inputs: Mapping[str, Any], cell: Any) -> None:
    """Store JSON values under their inputs, for ``read_as``."""
    file = _file(machine.own_folder(cache, "cells"), inputs)
    with writing(file, "HARNESS_CACHE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"inputs": inputs, "cell": cell}
        write_whole(file, json.dumps(content, indent=1) + "\n")


def _file(folder: Path, inputs: Mapping[str, Any]) -> Path:
    text = json.dumps(inputs, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
