"""Set two seeds, and shuffle a DataLoader on two ranks: does each seed give another order?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import accelerate
import torch
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

SEEDS = (1, 2, 3)
rows: Any = range(16)


def shuffle(orders: torch.Tensor) -> None:
    """For each seed, write the order in which the ranks together get the rows."""
    accelerator = accelerate.Accelerator(cpu=True)
    for place, seed in enumerate(SEEDS):
        set_seed(seed)
        loader = accelerator.prepare(DataLoader(rows, batch_size=4, shuffle=True))
        order = torch.cat([accelerator.gather(batch) for batch in loader])
        if accelerator.is_main_process:
            orders[place] = order


if __name__ == "__main__":
    for ranks in (1, 2):
        orders = torch.zeros(len(SEEDS), len(rows), dtype=torch.long).share_memory_()
        accelerate.debug_launcher(shuffle, (orders,), num_processes=ranks)
        print(f"accelerate {accelerate.__version__}, ranks {ranks}:")
        for seed, order in zip(SEEDS, orders.tolist(), strict=True):
            print(f"    seed {seed} gives", *order)
    has_bug = bool((orders == orders[0]).all())
    print(
        "WRONG: all seeds give the same order" if has_bug else "right: each seed has its own order"
    )
    raise SystemExit(3 if has_bug else 0)
