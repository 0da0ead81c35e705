"""ClipLoss over the rows of several ranks, and the same loss in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api

if TYPE_CHECKING:
    from torch import Tensor

SCALE = 10.0
"""By which the similarities are multiplied; CLIP trains it, beginning at 14."""


@dataclass(frozen=True)
class OfPairs:
    """A ClipLoss of features as one of the oracle's outputs: image and text are its two views."""

    loss: Any

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        import torch

        images, texts = features(outputs)
        loss: Tensor = self.loss(images, texts, torch.tensor(SCALE, device=images.device))
        return loss


def features(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The features of the images and of the texts, each of length 1.

    They are contiguous, as those of two encoders are: NCCL gathers no others, gloo does.
    """
    import torch

    images, texts = torch.nn.functional.normalize(outputs, dim=-1).unbind(1)
    return images.contiguous(), texts.contiguous()


def train(ctx: api.Context, oracle: Any, **options: Any) -> None:
    """Train with a ClipLoss of these options on several ranks, and the plain one in one process."""
    import torch.distributed as dist
    from open_clip.loss import ClipLoss

    dist.init_process_group(ctx.lane.backend)
    several = ClipLoss(rank=ctx.rank, world_size=ctx.world_size, **options)
    oracle.train(ctx, OfPairs(several), OfPairs(ClipLoss()))
