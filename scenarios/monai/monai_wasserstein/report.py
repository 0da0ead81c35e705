"""Compute GeneralizedWassersteinDiceLoss of two images: is it the mean of the images' losses?

Needs torch and monai, and no GPU. The exit code is 3 if the bug is there."""

import monai
import torch
from monai.losses import GeneralizedWassersteinDiceLoss

torch.manual_seed(0)
logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 1, 8, 8))
logits[0] += 9 * torch.nn.functional.one_hot(labels[0, 0], 3).permute(2, 0, 1)  # almost right
loss = GeneralizedWassersteinDiceLoss(1 - torch.eye(3))
one, other = (float(loss(*pair)) for pair in zip(logits.split(1), labels.split(1), strict=True))
batch = float(loss(logits, labels))
print(f"monai {monai.__version__}: {one:.4f} and {other:.4f} alone; as a batch {batch:.4f}")
is_wrong = abs(batch - (one + other) / 2) > 1e-4
print("WRONG: the images are mixed" if is_wrong else "right: the mean of both")
raise SystemExit(3 if is_wrong else 0)
