"""Measures where the time of cells goes on Slurm: ``python -m tests.slurm_scale``.

Twelve cells run on a real Slurm of two nodes. docs/measurements.toml has the figures.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from harness.run import command_line, slurm
from harness.run.executor import shape
from harness.run.run import make_overlay
from harness.run.slurm import Shape, Work
from harness.system.machine import cache_folder
from tests.slurm_cluster import PATH, cluster
from tests.slurm_tasks import on, timed_cell

BASE = command_line.compose(["scenario=sampler_shards", "variant=released", "on=slurm"])

RELEASES = ("0.26.1", "0.27.2", "0.28.0", "0.29.3", "0.30.1", "0.31.0", "0.32.1", "0.33.0")
LATER = ("0.34.2", "1.0.1", "1.1.1", "1.15.0")


def main() -> None:
    """Twelve cells on two nodes: the seconds of each part of a task."""
    overlays = cache_folder() / "overlays"
    configs = [replace(BASE, pins={"accelerate": release}) for release in (*RELEASES, *LATER)]
    works = [Work(config, Shape(*shape(config))) for config in configs]
    for config in configs:
        make_overlay(config, "released", cache_folder())
    with tempfile.TemporaryDirectory() as folder, cluster() as nodes:
        os.environ.update(SLURM_CONF=str(nodes.conf), HARNESS_CACHE=folder, PATH=PATH)
        Path(folder, "overlays").symlink_to(overlays)
        begun = time.time()
        timings = [(*value, time.time()) for _, value in slurm.results(works, timed_cell, on())]
        print(f"{time.time() - begun:.1f} s")
    free = {node: begun for node, *_ in timings}
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


if __name__ == "__main__":
    main()
