"""Drives a step function of the user, for loops that have no arguments for their batches.

For a probe this is the script: each rank runs it. The user's function returns a function ``step``,
which takes the micro-batches of one step and makes the optimizer's step. A micro-batch is a list of
the numbers of its rows, from 0.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

STEPS = 1_000_000
"""More than any probe takes."""

Step = Callable[[list[list[int]]], object]


def main(arguments: Sequence[str]) -> None:
    """Take steps until the probe has seen enough."""
    file, name, rows, k, mode, *words = arguments
    sys.argv = [file, *words]
    sys.path.insert(0, str(Path(file).resolve().parent))
    step: Step = getattr(_module(file), name)()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if mode == "same rows":
        rank, world = 0, 1
    for number in range(STEPS):
        step(micro_batches(number, rank, world, int(k), int(rows)))


def _module(file: str) -> ModuleType:
    """The user's file, imported under its own name."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a file with Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def micro_batches(number: int, rank: int, world: int, k: int, rows: int) -> list[list[int]]:
    """The rows of a step on one rank. All ranks together have the same rows in each layout."""
    start = (number * world + rank) * k * rows
    return [list(range(start + m * rows, start + (m + 1) * rows)) for m in range(k)]


if __name__ == "__main__":
    main(sys.argv[1:])
