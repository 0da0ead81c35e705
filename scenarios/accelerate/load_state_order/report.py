"""Save at the end of an epoch, and resume with load_state: has the next epoch another order?

Needs torch and accelerate from 0.30 on, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import accelerate
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

rows: Any = range(16)


def start() -> tuple[Any, Any]:
    """An Accelerator and a prepared loader, as at the beginning of a script."""
    settings = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    set_seed(0)
    return accelerator, accelerator.prepare(DataLoader(rows, batch_size=4, shuffle=True))


def order(loader: Any) -> list[int]:
    return [int(row) for batch in loader for row in batch]


accelerator, loader = start()
first = order(loader)
accelerator.save_state(folder := tempfile.mkdtemp())
second = order(loader)
accelerator, loader = start()
accelerator.load_state(folder)
resumed = order(loader)
print("accelerate", accelerate.__version__)
print("epoch 1, before the stop: ", first)
print("epoch 2, without a stop:  ", second)
print("epoch 2, after the resume:", resumed)
has_bug = resumed == first != second
print("WRONG: epoch 2 has the order of epoch 1" if has_bug else "right: epoch 2 has another order")
raise SystemExit(3 if has_bug else 0)
