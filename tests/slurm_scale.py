"""Measures what grows with the number of tasks: submits, follows and collects many empty ones.

    python -m tests.slurm_scale 10000
    python -m tests.slurm_scale cells

Slurm, its queue and all files are real. Slurm holds the tasks in its queue, and this script writes
their results: two nodes of one machine would need hours for them. ``cells`` runs twelve real cells
and shows where their time goes. docs/measurements.toml has the figures.
"""

from __future__ import annotations

import os
import pickle
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.run import batch, cells, command_line, slurm
from harness.run.batch import Batch, Work
from harness.run.cluster import _shape, cell_task
from harness.run.run import make_overlay
from harness.run.slurm import Shape
from harness.system.machine import cache_folder
from tests.slurm_cluster import PATH, Cluster, cluster
from tests.slurm_tasks import on, silent, timed_cell


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, cluster(lines="MaxJobCount=100000") as nodes:
        os.environ.update(SLURM_CONF=str(nodes.conf), HARNESS_CACHE=folder, PATH=PATH)
        configs = [replace(BASE, seed=seed) for seed in range(count)]
        _measure(nodes, [Work(config, Shape(1, 0)) for config in configs])


BASE = command_line.compose(["scenario=sampler_shards", "variant=released", "on=slurm"])

DO = partial(cell_task, again=False)


RELEASES = ("0.26.1", "0.27.2", "0.28.0", "0.29.3", "0.30.1", "0.31.0", "0.32.1", "0.33.0")
LATER = ("0.34.2", "1.0.1", "1.1.1", "1.15.0")


def cells_() -> None:
    """Twelve cells on two nodes: the seconds of each part of a task."""
    overlays = cache_folder() / "overlays"
    configs = [replace(BASE, pins={"accelerate": release}) for release in (*RELEASES, *LATER)]
    works = [Work(config, _shape(config)) for config in configs]
    for config in configs:
        make_overlay(config, "released", cache_folder())
    with tempfile.TemporaryDirectory() as folder, cluster() as nodes:
        os.environ.update(SLURM_CONF=str(nodes.conf), HARNESS_CACHE=folder, PATH=PATH)
        Path(folder, "overlays").symlink_to(overlays)
        begun = time.time()
        with Batch(works, timed_cell, on(), silent) as tasks:
            submitted = time.time()
            timings = [(*value, time.time()) for _, value in tasks.results()]
        print(f"{time.time() - begun:.1f} s, {tasks.queue.looks} looks at the queue")
    free = {node: submitted for node, *_ in timings}
    parts: dict[str, list[float]] = {}
    for node, script, entered, trial, ended, collected in sorted(timings, key=lambda row: row[1]):
        row = {
            "queue": script - free[node],
            "start, import of submitit and of us": entered - script,
            "run without its trial": ended - entered - trial,
            "trial": trial,
            "until it is collected": collected - ended,
        }
        free[node] = ended
        for name, seconds in row.items():
            parts.setdefault(name, []).append(seconds)
    for name, seconds in parts.items():
        print(f"{name}: median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")


def _measure(nodes: Cluster, works: list[Work]) -> None:
    settings = on(most=len(works), extra={"hold": True})
    tasks = Batch(works, DO, settings, silent)
    timed("submit: sbatch and pickles", tasks.__enter__)
    print(f"  {len(tasks.arrays)} arrays, {_files()} files")
    text = timed("squeue", lambda: nodes.ask("squeue", "--array", "--noheader", "-o", "%i %T %r"))
    print(f"  {len(text.splitlines())} lines, {len(text) / 1e6:.2f} MB")
    timed("one look: squeue and the tally", tasks._look)
    timed("one poll without a result", lambda: list(tasks._collected()))
    outcome = pickle.dumps(("success", cells.not_run(works[0].argument, batch.Lost("none"))))
    timed("the results are written", lambda: _write(tasks, outcome))
    print(f"  {_files()} files; a result has {len(outcome)} bytes")
    answers = timed("collect", lambda: list(tasks.results()))
    assert len(answers) == len(works)
    timed("cancel and remove", tasks.__exit__)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


def _write(of: Batch, content: bytes) -> None:
    for array in of.arrays:
        for task in array.tasks:
            (array.folder / slurm.result_file(task.name)).write_bytes(content)


def _files() -> int:
    return sum(len(files) for _, _, files in os.walk(batch.home()))


def timed(label: str, do: Callable[[], Any]) -> Any:
    start, cpu = time.monotonic(), time.process_time()
    answer = do()
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu
    print(f"{label}: {seconds:.2f} s ({cpu_seconds:.2f} s of this process)", flush=True)
    return answer


if __name__ == "__main__":
    if sys.argv[1] == "cells":
        cells_()
    else:
        main(int(sys.argv[1]))
