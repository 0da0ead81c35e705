"""MONAI's GeneralizedWassersteinDiceLoss mixes the images of a batch.

This affected users of MONAI who train a segmentation with this loss, whose author reported it in
2022. With one image in a batch it is right. With several, the foreground of each image is judged by
the predictions for all images of the batch: a voxel of image 1 by the distances at the same place
in image 2, and so on. The more images, the less a prediction's own image counts. The loss has no
error and no warning, stays between 0 and 1, and falls.

Root cause: the weights of the voxels keep a dimension of size 1, so they are [images, 1, voxels].
Multiplied by distances of [images, voxels], they are broadcast to [images, images, voxels], and
the sum over the last two dimensions adds all images. 1.6.0 drops the dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS, CLASSES, SIZE = 4, 3, 6
SMOOTH = 1e-5
"""Upstream's default."""

oracle = features.Feature("exactly that follows if the distances of all images are added in each")


def run(ctx: api.Context) -> None:
    """Train a convolution; the same loss of one image at a time is the reference."""
    import torch
    from monai.losses import GeneralizedWassersteinDiceLoss

    p = ctx.params
    torch.manual_seed(ctx.seed)
    model = torch.nn.Conv2d(CHANNELS, CLASSES, 1).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    far = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.5], [1.0, 0.5, 0.0]])
    of_batch = GeneralizedWassersteinDiceLoss(far, weighting_mode=p.mode)
    for step in api.each(p.steps):
        images = torch.randn(p.rows, CHANNELS, SIZE, SIZE).to(ctx.device)
        labels = torch.randint(CLASSES, (p.rows, 1, SIZE, SIZE)).to(ctx.device)
        pairs = zip(model(images).split(1), labels.split(1), strict=True)
        expected = features.of_losses(model, [of_batch(*pair) for pair in pairs])
        mixed = _mixed(model(images), labels, far.to(ctx.device), p.mode)
        documented = features.of_losses(model, [mixed])
        optimizer.zero_grad()
        loss = of_batch(model(images), labels)
        loss.backward()
        features.record(ctx, step, loss, features.gradients(model), expected, documented)
        optimizer.step()


def _mixed(logits: Tensor, labels: Tensor, far: Tensor, mode: str) -> Tensor:
    """The loss if each image takes the distances of all images of the batch for its own."""
    import torch

    of_voxels = labels.flatten(1)
    distances = (far[of_voxels].transpose(1, 2) * logits.flatten(2).softmax(1)).sum(1)
    if mode == "GDL":
        volumes = torch.nn.functional.one_hot(of_voxels, CLASSES).sum(1)
        weights = (1 / (volumes + 1)).gather(1, of_voxels)
    else:
        weights = (of_voxels > 0).to(distances.dtype)
    hits = weights @ (1 - distances).sum(0)
    if mode == "GDL":
        total = weights @ (2 - distances).sum(0)
    else:
        total = 2 * hits + distances.sum(1)
    return (1 - (2 * hits + SMOOTH) / (total + SMOOTH)).mean()
