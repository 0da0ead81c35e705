"""Augment with albumentations in two workers of a DataLoader: are the workers and epochs different?

Needs torch and albumentations, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import albumentations
import numpy as np
from torch.utils.data import DataLoader

brighten = albumentations.RandomBrightnessContrast(0.4, contrast_limit=(0, 0), p=1)
transform = albumentations.Compose([brighten])


class Grey:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> float:
        return float(transform(image=np.full((4, 4, 3), 0.5, np.float32))["image"].mean())


loader: Any = DataLoader(Grey(), batch_size=2, num_workers=2)  # type: ignore[arg-type]
epochs = [[f"{n:.4f}" for batch in loader for n in batch] for _ in range(2)]
print(
    f"albumentations {albumentations.__version__}: the brightness of 8 grey images, in batches of 2"
)
for number, epoch in enumerate(epochs, 1):
    for worker in (0, 1):
        mine = [*epoch[2 * worker : 2 * worker + 2], *epoch[2 * worker + 4 : 2 * worker + 6]]
        print(f"epoch {number}, worker {worker}: {' '.join(mine)}")
different = len({number for epoch in epochs for number in epoch})
print("WRONG: workers and epochs repeat" if different < 16 else "right: 16 different augmentations")
raise SystemExit(3 if different < 16 else 0)
