"""Change a weight on the CPU while dcp.async_save writes it: does the file have what was saved?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
import threading
from typing import Any

import torch
from torch.distributed import checkpoint

folder, weight, stepped = tempfile.mkdtemp(), torch.full((4,), 1.0), threading.Event()


class Slow(checkpoint.DefaultSavePlanner):
    """Plans only after the next step, as if the disk was slow; it does not touch the copies."""

    def create_local_plan(self) -> Any:
        stepped.wait()
        return super().create_local_plan()


writer = checkpoint.FileSystemWriter(folder)
saving = checkpoint.async_save({"weight": weight}, storage_writer=writer, planner=Slow())
weight.fill_(2.0)  # async_save has returned, so training goes on
stepped.set()
saving.result()
loaded = {"weight": torch.zeros(4)}
checkpoint.load(loaded, checkpoint_id=folder)
number = float(loaded["weight"][0])
print(f"torch {torch.__version__}: 1 was saved, then the weight became 2; the file has {number:g}")
print("WRONG: it has a later weight" if number != 1 else "right: it has the weight that was saved")
raise SystemExit(3 if number != 1 else 0)
