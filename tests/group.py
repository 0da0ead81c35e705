"""A process group for tests of detectors: real processes with gloo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def in_group(ranks: int, job: Callable[[int, Path], None], folder: Path) -> None:
    """Call ``job(rank, folder)`` in as many processes as there are ranks, all in one group.

    They are forked: otherwise each of them would import torch for two seconds.
    """
    start_processes(_member, (ranks, job, folder), nprocs=ranks, start_method="fork")


def _member(rank: int, ranks: int, job: Callable[[int, Path], None], folder: Path) -> None:
    torch.set_num_threads(1)  # threads of the parent are not forked
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    job(rank, folder)
    dist.destroy_process_group()
