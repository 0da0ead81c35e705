"""Asynchronous saves whose thread begins late. Imports torch: import it inside ``run``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

LONGEST = 60
"""Seconds that a saving thread waits for the next step."""


class Late(DefaultSavePlanner):
    """Plans when ``begin`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = threading.Event()

    def create_local_plan(self) -> Any:
        if not self.begin.wait(LONGEST):
            raise TimeoutError(f"the next step was not done within {LONGEST} seconds")
        return super().create_local_plan()


class Saves:
    """The checkpoints of a training, one file for each step.

    The planner lets the saving thread begin at ``finish``, as a slow disk would, so that nothing
    depends on which thread is faster. It does not touch the copies.
    """

    def __init__(self, folder: Path, path: str) -> None:
        self.folder, self.path = folder, path
        self.group = dist.new_group(backend="gloo")  # the thread's collectives, apart from DDP's
        self.pending: list[tuple[Late, Any]] = []

    def start(self, step: int, model: torch.nn.Module) -> None:
        """Call ``async_save`` with the model's state; its thread waits for ``finish``."""
        planner, where = Late(), self._where(step)
        states = {"model": model.state_dict()}
        future = async_save(states, planner=planner, process_group=self.group, **where)
        self.pending.append((planner, future))

    def _where(self, step: int) -> dict[str, Any]:
        file = self.folder / f"step_{step}"
        return (
            {"storage_writer": FileSystemWriter(file)}
            if self.path == "writer"
            else {"checkpoint_id": file}
        )

    def finish(self) -> None:
        """Let the threads write, and wait until they have."""
        for planner, future in self.pending:
            planner.begin.set()
            future.result()
        self.pending.clear()

    def read(self, step: int, model: torch.nn.Module) -> Tensor:
        """The weight in the checkpoint of a step."""
        states = {"model": {n: torch.zeros_like(p) for n, p in model.state_dict().items()}}
        load(states, checkpoint_id=self.folder / f"step_{step}", process_group=self.group)
        return states["model"]["weight"]
