"""Resume in the second epoch with skip_first_batches: do its other batches come next?

Needs torch and accelerate, and no GPU. The exit code is 1 if the bug is there."""

from typing import Any

import accelerate
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

rows: Any = range(24)


def prepared() -> Any:
    """A loader of 6 batches of 4 rows, prepared as transformers' Trainer does by default."""
    set_seed(0)
    settings = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    return accelerator.prepare(DataLoader(rows, batch_size=4, shuffle=True))


def order(loader: Any) -> list[int]:
    return [int(row) for batch in loader for row in batch]


loader = prepared()
first, second = order(loader), order(loader)  # two epochs without a stop
loader = prepared()
loader.set_epoch(1)
rest = order(accelerate.skip_first_batches(loader, 3))
seen = len({*second[:12], *rest})
print("accelerate", accelerate.__version__)
print("epoch 0:                ", first[:12], first[12:])
print("epoch 1:                ", second[:12], second[12:])
print("epoch 1, 3 batches done:", rest)
print(f"Before and after the resume, {seen} of 24 rows came in epoch 1")
replayed = rest == first[12:]
print("WRONG: the end of epoch 0 comes again" if replayed else "right: the end of epoch 1 comes")
raise SystemExit(replayed)
