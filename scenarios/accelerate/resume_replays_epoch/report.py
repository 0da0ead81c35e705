"""Resume in the second epoch with skip_first_batches: do its other batches come next?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

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
epoch_0, epoch_1 = order(loader), order(loader)  # two epochs without a stop
loader = prepared()
loader.set_epoch(1)
tail = order(accelerate.skip_first_batches(loader, 3))
count = len({*epoch_1[:12], *tail})
print("accelerate", accelerate.__version__)
print("epoch 0:                ", epoch_0[:12], epoch_0[12:])
print("epoch 1:                ", epoch_1[:12], epoch_1[12:])
print("epoch 1, 3 batches done:", tail)
print(f"Before and after the resume, {count} of 24 rows came in epoch 1")
replayed = tail == epoch_0[12:]
print("WRONG: the end of epoch 0 comes again" if replayed else "right: the end of epoch 1 comes")
raise SystemExit(3 if replayed else 0)
