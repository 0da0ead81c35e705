"""DistributedLossWrapper over the rows of several ranks, and the same loss in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import api

if TYPE_CHECKING:
    from torch import Tensor

LOSSES = {
    "ntxent": "NTXentLoss",
    "contrastive": "ContrastiveLoss",
    "triplet": "TripletMarginLoss",
    "multi_similarity": "MultiSimilarityLoss",
    "supcon": "SupConLoss",
    "circle": "CircleLoss",
}
"""The classes of pytorch_metric_learning, by the names of the parameter ``loss``."""
FILE = "pytorch_metric_learning/utils/distributed.py"


def scales(ranks: int) -> tuple[int, int]:
    """Since 1.0.0 the wrapper reports the loss times the number of ranks."""
    return 1, ranks


def train(ctx: api.Context, oracle: Any, **options: Any) -> None:
    """Train with the loss that the parameters name, wrapped with these options."""
    import torch.distributed as dist
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    dist.init_process_group(ctx.lane.backend)
    made = getattr(losses, LOSSES[ctx.params.loss])()
    wrapped = DistributedLossWrapper(made, **options)
    oracle.train(ctx, of_rows(wrapped), of_rows(made))


def of_rows(loss: Any) -> Any:
    """A loss of embeddings as one of the oracle's outputs: each row is one embedding."""

    def call(outputs: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = loss(outputs.flatten(1), labels)
        return found

    return call
