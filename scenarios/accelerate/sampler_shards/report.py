"""Seed two ranks differently and shuffle a DataLoader: do the ranks together see all rows?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import accelerate
import torch
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

rows: Any = range(64)


def shuffle(totals: torch.Tensor) -> None:
    """Without and with a seed for each rank, count how often each row comes in an epoch."""
    accelerator = accelerate.Accelerator(cpu=True)
    for place, specific in enumerate((False, True)):
        set_seed(0, device_specific=specific)
        loader = accelerator.prepare(DataLoader(rows, batch_size=4, shuffle=True))
        drawn = torch.cat([accelerator.gather(batch) for batch in loader])
        if accelerator.is_main_process:
            totals[place] = torch.bincount(drawn, minlength=len(rows))


if __name__ == "__main__":
    tallies = torch.zeros(2, len(rows), dtype=torch.long).share_memory_()
    accelerate.debug_launcher(shuffle, (tallies,), num_processes=2)
    print("accelerate", accelerate.__version__)
    for specific, counts in zip((False, True), tallies, strict=True):
        never, drawn = int((counts == 0).sum()), int(counts.sum())
        print(f"device_specific={specific}: {drawn} rows were drawn, and {never} of 64 never came")
    print("WRONG: each rank has its own order" if never else "right: all ranks share one order")
    raise SystemExit(3 if never > 0 else 0)
