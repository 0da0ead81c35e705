"""Small tasks for a real Slurm, and a command that submits some:

    python -m tests.slurm_tasks FOLDER COUNT SECONDS

Each task writes a line into FOLDER when it begins and one when it ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.__main__ import _as_interrupt
from harness.bugs.results import Result
from harness.run import cells, slurm
from harness.run.run_config import SLURM, OnConfig, RunConfig
from harness.run.slurm import Shape, Work
from harness.system.machine import cache_folder


def on(**changes: Any) -> OnConfig:
    """The settings of a command."""
    return OnConfig(where=SLURM, **{"time": 5, **changes})


def nap(argument: tuple[str, str, float]) -> str:
    """Sleep; returns the name of the task and of its node."""
    folder, name, seconds = argument
    node = os.environ["SLURMD_NODENAME"]
    _note(folder, f"begin {name} {node} {time.time()}")
    time.sleep(seconds)
    _note(folder, f"end {name} {node} {time.time()}")
    return f"{name} on {node}"


def interruptible(argument: tuple[str, str, float]) -> str:
    """Sleep as ``nap`` does, and note an interruption."""
    try:
        return nap(argument)
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm and its srun may both send one
        _note(argument[0], f"interrupted {argument[1]}")
        raise


def fail(argument: tuple[str, str, float]) -> str:
    """Raise an error that no run raises."""
    raise ZeroDivisionError(argument[1])


def large(argument: tuple[str, str, float]) -> bytes:
    """Return a megabyte."""
    return os.urandom(1_000_000)


def timed_cell(config: RunConfig) -> tuple[str, float, float, float, float]:
    """Run a cell; returns the node, when its script and this function began, the seconds of the
    trial, and when it ended."""
    entered = time.time()
    parent = psutil.Process().parent()
    script = parent.create_time() if parent else entered
    cell = cells.find(config, cache_folder(), again=True)
    seconds = cell.seconds if isinstance(cell, Result) else 0.0
    return os.environ["SLURMD_NODENAME"], script, entered, seconds, time.time()


def _note(folder: str, line: str) -> None:
    with Path(folder, "notes").open("a") as file:
        file.write(f"{line}\n")


def notes(folder: Path, kind: str) -> list[list[str]]:
    """The lines of a kind: ``begin``, ``end`` or ``interrupted``."""
    with suppress(FileNotFoundError):
        lines = [line.split() for line in (folder / "notes").read_text().splitlines()]
        return [words[1:] for words in lines if words[0] == kind]
    return []


def works(folder: Path, seconds: Sequence[float], cores: int = 1) -> list[Work]:
    """A task for each number of seconds."""
    return [Work((str(folder), str(n), each), Shape(cores, 0)) for n, each in enumerate(seconds)]


def main() -> None:
    folder, count, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGTERM, _as_interrupt)
    for index, value in slurm.results(works(folder, [seconds] * count), interruptible, on()):
        print(f"result {index}: {value}", flush=True)


if __name__ == "__main__":
    main()
