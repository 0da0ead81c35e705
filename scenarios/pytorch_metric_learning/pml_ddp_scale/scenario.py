"""Under DDP, DistributedLossWrapper divides the gradient by the number of ranks.

The wrapper gathers the embeddings of all ranks, so that each of them is compared with all others.
The loss that it returns is right and the same on all ranks. But DDP's gradient is 1 / n of that of
one process with the whole batch: half of it on 2 ranks. SGD then trains at 1 / n of the chosen
learning rate, and weight decay and gradient clipping have another weight beside the loss. Adam
hides most of it. Nothing shows the bug but a comparison with one process.

Root cause: ``torch.distributed.all_gather`` passes no gradient on, so on each rank only the rank's
own embeddings have one. The ranks' gradients must be added, but DDP averages them. Since 1.0.0
``DistributedLossWrapper.forward`` multiplies the loss by the number of ranks. The gradient is then
right, and the reported loss is n times too large.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import whole_batch
from scenarios.pytorch_metric_learning import _wrapped as wrapped

oracle = whole_batch.Averaged(wrapped.scales)


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with the wrapped loss."""
    wrapped.train(ctx, oracle)


exercised = whole_batch.several
