"""Mix rows with p=0.5: are all rows of a chosen batch mixed?

Needs torch and kornia, and no GPU. The exit code is 3 if the bug is there."""

import kornia
import torch
from kornia.augmentation import RandomMixUpV2

images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
chosen = rows = mixed = 0
for seed in range(400):
    torch.manual_seed(seed)
    augmentation = RandomMixUpV2(p=0.5, data_keys=["input", "class"])
    _, mixed_labels = augmentation(images, labels)
    if augmentation._params["batch_prob"].all():
        chosen, rows = chosen + 1, rows + 4
        mixed += int((mixed_labels[:, 2] > 0).sum())
print(f"kornia {kornia.__version__}: {chosen} of 400 batches chosen; {mixed} of {rows} rows mixed")
print("WRONG: p is applied twice" if mixed < rows else "right: all of them")
raise SystemExit(3 if mixed < rows else 0)
