"""DistributedLossWrapper over the rows of several ranks, and the same loss in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common.whole_batch import Part, joined

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


def scales(ranks: int) -> tuple[int, int]:
    """Since 1.0.0 the wrapper reports the loss times the number of ranks."""
    return 1, ranks


def train(ctx: api.Context, oracle: Any, **options: Any) -> None:
    """Train with the loss that the parameters name, wrapped with these options."""
    import torch.distributed as dist
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    dist.init_process_group(ctx.lane.backend)
    loss = getattr(losses, LOSSES[ctx.params.loss])()
    wrapped = DistributedLossWrapper(loss, **options)
    oracle.train(ctx, OfRows(wrapped), OfRows(loss))


@dataclass(frozen=True)
class OfRows:
    """A loss of embeddings as one of the oracle's outputs: each row is one embedding."""

    loss: Any

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(outputs.flatten(1), labels)
        return loss

    def anchored(self, parts: Sequence[Part], rank: int) -> Tensor:
        """The loss of one rank's rows as anchors; gradients reach the rank's own rows alone."""
        import torch
        from pytorch_metric_learning.utils import loss_and_miner_utils as pairs

        outputs, labels = parts[rank]
        others = [part for n, part in enumerate(parts) if n != rank]
        rows, classes = joined([parts[rank], *((out.detach(), of) for out, of in others)])
        chosen = pairs.get_all_pairs_indices(labels, classes)
        anchors = torch.arange(len(labels), device=labels.device)
        chosen = pairs.remove_self_comparisons(chosen, anchors, len(classes))
        loss: Tensor = self.loss(outputs.flatten(1), labels, chosen, rows.flatten(1), classes)
        return loss
