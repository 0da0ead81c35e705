"""SIGReg(gather_distributed=True) makes each gradient too small by the number of ranks.

SIGReg, the regularizer of LeJEPA, compares the distribution of the embeddings with a normal one.
With ``gather_distributed=True`` it takes the embeddings of all ranks; its value is right and the
same on all ranks. But DDP's gradient of it is 1 / n of that of one process: half of it on 2 ranks.
SIGReg is added to another loss, whose gradient is right. So the regularizer has 1 / n of the weight
that was chosen for it, and Adam does not hide that.

Root cause: ``_compute_cf_error_at_each_frequency`` adds the ranks' sums with
``torch.distributed.all_reduce``, which autograd does not see. So each rank has the gradient of its
own rows alone. These must be added, but DDP averages them. Since 1.5.24
``torch.distributed.nn.all_reduce`` is used, which passes the gradients of all ranks on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch

if TYPE_CHECKING:
    from torch import Tensor


oracle = whole_batch.Averaged()


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with SIGReg alone."""
    import torch
    import torch.distributed as dist
    from lightly.loss.lejepa_loss import SIGReg

    dist.init_process_group(ctx.lane.backend)

    def of(loss: Any) -> whole_batch.Loss:
        loss = loss.to(ctx.device)

        def call(outputs: Tensor, labels: Tensor) -> Tensor:
            torch.manual_seed(ctx.seed)  # it compares along directions that it draws each time
            penalty: Tensor = loss(outputs.flatten(0, 1))
            return penalty

        return call

    oracle.train(ctx, of(SIGReg(gather_distributed=True)), of(SIGReg()))


exercised = whole_batch.several
