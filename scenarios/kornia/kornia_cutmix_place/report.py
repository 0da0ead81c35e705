"""Draw the cuts of a batch with CutMix: is each at a place of its own?

Needs torch and kornia, and no GPU. The exit code is 3 if the bug is there."""

import kornia
import torch
from kornia.augmentation import RandomCutMixV2

side = 100_000
torch.manual_seed(0)
augmentation = RandomCutMixV2(p=1.0, num_mix=2, same_on_batch=False)
cuts = augmentation.forward_parameters(torch.Size([4, 1, side, side]))["crop_src"].flatten(0, 1)
starts, sizes = cuts[:, 0, 0], cuts[:, 2, 0] - cuts[:, 0, 0] + 1
places = [round(float(place), 3) for place in starts / (side - sizes)]
print(f"kornia {kornia.__version__}: the widths are {[int(size) for size in sizes]}")
print(f"the places are {places}")
is_wrong = max(places) - min(places) < 0.01
print("WRONG: one place for all cuts" if is_wrong else "right: a place for each")
raise SystemExit(3 if is_wrong else 0)
