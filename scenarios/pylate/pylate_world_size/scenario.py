"""Under DDP, PyLate's Contrastive multiplies the gradient by the number of ranks.

This affected users of PyLate who train a late-interaction model on several ranks with Contrastive
or CachedContrastive. By default each rank compares its queries with its own documents, so DDP's
mean of the gradients is right. The loss multiplies each of them by the number of ranks: on 8 GPUs
the gradient is 8 times too long, which SGD, gradient clipping and a second loss feel; Adam hides
most of it. A recipe that was tuned on one GPU means something else on 8. The logged loss is
multiplied as well, and falls as ever.

Root cause: 1.2.0 brought ``gather_across_devices``, and with it a factor for the gathered
documents. ``forward`` multiplies by it whether or not it gathered any. 1.3.1 multiplies only if it
did.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.pylate import _contrastive as contrastive

oracle = contrastive.oracle


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP; each rank compares its own pairs."""
    contrastive.train(ctx, gather=False)
