"""What grows with the number of tasks: submit, follow, collect and resume many empty ones.

    python -m tests.slurm_scale 10000

Slurm, its queue and all files are real. The tasks are held in the queue, and their results are
written here: two nodes of one machine would need hours for them. docs/cluster.md has the figures.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from harness import config
from harness.run_config import RunConfig
from harness.sweep import array, batch, cells, slurm
from harness.sweep.batch import Batch, Work
from harness.sweep.cluster import _key, cell_task
from harness.sweep.slurm import Shape
from tests.slurm_cluster import PATH, Cluster, cluster
from tests.slurm_tasks import on, silent


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, cluster(more="MaxJobCount=100000") as made:
        os.environ.update(SLURM_CONF=str(made.conf), HARNESS_CACHE=folder, PATH=PATH)
        configs = [replace(BASE, seed=seed) for seed in range(count)]
        works = timed("keys", lambda: [_work(each) for each in configs])
        _measure(made, works)


BASE = config.compose(["scenario=sampler_shards", "variant=released", "on=slurm"])

DO = partial(cell_task, again=False)


def _work(config: RunConfig) -> Work:
    return Work(_key(config, "scale"), config, Shape(1, 0))


def _measure(made: Cluster, works: list[Work]) -> None:
    settings = on(most=len(works), extra={"hold": True})
    first = Batch(works, DO, settings, silent)
    timed("submit: sbatch, pickles and notes", first.__enter__)
    names = [each.name for each in first.under_way]
    print(f"  {len(names)} arrays, {_files()} files")
    text = timed("squeue", lambda: made.ask("squeue", "--array", "--noheader", "-o", "%i %T %r"))
    print(f"  {len(text.splitlines())} lines, {len(text) / 1e6:.2f} MB")
    timed("one look: squeue and the tally", first._look)
    timed("one poll without a result", lambda: list(first._collected()))
    for each in first.under_way:  # as if the process had died
        each.leave()
    again = Batch(works, DO, settings, silent)
    timed("resume: read the notes", again.__enter__)
    one = pickle.dumps(("success", cells.not_run(works[0].argument, batch.Lost("none"))))
    timed("the results are written", lambda: _write(again, one))
    print(f"  {_files()} files; a result has {len(one)} bytes")
    found = timed("collect", lambda: list(again.results()))
    assert len(found) == len(works)
    for name in names:
        slurm.cancel(name)
    timed("remove", again.__exit__)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


def _write(of: Batch, content: bytes) -> None:
    for each, tasks in of.under_way.items():
        for task in tasks:
            (each.folder / slurm.result_file(task.name)).write_bytes(content)


def _files() -> int:
    return sum(len(files) for _, _, files in os.walk(array.home()))


def timed(what: str, do: Callable[[], Any]) -> Any:
    start, cpu = time.monotonic(), time.process_time()
    found = do()
    seconds, own = time.monotonic() - start, time.process_time() - cpu
    print(f"{what}: {seconds:.2f} s ({own:.2f} s of this process)", flush=True)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
