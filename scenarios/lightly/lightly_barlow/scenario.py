"""BarlowTwinsLoss(gather_distributed=True) makes each gradient too small by the number of ranks.

The loss of Barlow Twins compares two views by the correlation of their features over the batch.
With ``gather_distributed=True`` the correlations of all ranks are added, so that the loss is that
of the batch of all ranks; it is right and the same on all ranks. But DDP's gradient is 1 / n of
that of one process: half of it on 2 ranks. SGD trains at 1 / n of the chosen learning rate; Adam
hides most of it.

Root cause: ``BarlowTwinsLoss.forward`` adds the correlations with ``torch.distributed.all_reduce``,
which autograd does not see. So each rank has the gradient of its own rows alone. These must be
added, but DDP averages them. Since 1.5.26 ``torch.distributed.nn.all_reduce`` is used, which passes
the gradients of all ranks on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch

if TYPE_CHECKING:
    from torch import Tensor


oracle = whole_batch.Averaged()


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with the loss; each rank normalises its own rows."""
    import torch
    import torch.distributed as dist
    from lightly.loss import BarlowTwinsLoss

    def of_views(loss: Any) -> whole_batch.Loss:
        return lambda outputs, labels: loss(*outputs.unbind(1))

    dist.init_process_group(ctx.lane.backend)
    plain = of_views(BarlowTwinsLoss())

    def alone(outputs: Tensor, labels: Tensor) -> Tensor:
        # The loss normalises features over its rows. It does that with each rank's rows: here that
        # is done before, and once more over all rows it changes nothing.
        parts = outputs.chunk(ctx.world_size)
        normal = [torch.stack([_normal(v) for v in part.unbind(1)], 1) for part in parts]
        return plain(torch.cat(normal), labels)

    oracle.train(ctx, of_views(BarlowTwinsLoss(gather_distributed=True)), alone)


def _normal(rows: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.batch_norm(rows, None, None, training=True)


exercised = whole_batch.several
