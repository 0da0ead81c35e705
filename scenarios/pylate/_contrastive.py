"""PyLate's Contrastive over a linear map under DDP; queries and documents are one token each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch

if TYPE_CHECKING:
    from torch import Tensor


def times_ranks(alone: whole_batch.Loss, parts: Sequence[whole_batch.Part]) -> Tensor:
    """Each step applied the mean gradient of the ranks, multiplied by their number."""
    return alone(*whole_batch.joined(parts)) * len(parts)


oracle = whole_batch.WholeBatch(
    times_ranks,
    "exactly that follows if each rank's loss is multiplied by {ranks}",
    lambda ranks: (1, ranks),
)


def train(ctx: api.Context, *, gather: bool) -> None:
    """Compare each query with the documents of its rank, or, with ``gather``, of all ranks."""
    import torch
    import torch.distributed as dist
    from pylate.losses import Contrastive
    from torch.nn import functional as F

    dist.init_process_group(ctx.lane.backend)
    contrastive = Contrastive(_encoder(), gather_across_devices=gather)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        """Upstream's loss of this rank's pairs."""
        ids = torch.ones(len(outputs), 1, dtype=torch.long, device=outputs.device)
        views = (view.contiguous() for view in outputs.split(1, dim=1))
        features = [{"input_ids": ids, "attention_mask": ids, "tokens": view} for view in views]
        result: Tensor = contrastive(features, labels)
        return result

    def alone(outputs: Tensor, labels: Tensor) -> Tensor:
        """Plain torch's, in one process."""
        parts = F.normalize(outputs, dim=-1).chunk(1 if gather else ctx.world_size)
        scores = [part[:, 0] @ part[:, 1].T for part in parts]
        own = (torch.arange(len(part), device=outputs.device) for part in parts)
        return torch.stack(list(map(F.cross_entropy, scores, own))).mean()

    oracle.train(ctx, loss, alone)


def _encoder() -> Any:
    """Stands in for a ColBERT model: the features have the embeddings of their tokens."""
    import torch

    class Encoder(torch.nn.Module):
        skiplist: tuple[int, ...] = ()
        do_query_expansion = False

        def forward(self, features: Any) -> Any:
            return {"token_embeddings": features["tokens"]}

    return Encoder()
