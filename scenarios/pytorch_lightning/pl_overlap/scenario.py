"""Without a global seed, Lightning's ranks shuffle with different seeds, and share some rows.

This affects users who train on several ranks with ``shuffle=True`` and without ``seed_everything``,
if the random states of the ranks differ, for example because each rank seeds itself or has drawn
numbers before. Each rank takes its part of an order of its own, so that in an epoch some rows come
on two ranks and others never. The number of batches is right.

Root cause: from 1.7.0 to 2.0.2 Lightning wraps the loader's ``RandomSampler`` for the ranks. On
each rank it draws its seed from the rank's own global generator. The fix replaces a RandomSampler
by torch's ``DistributedSampler``, whose seed is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, orders, rows

BATCH = 2
"""Rows of a batch of a rank."""


def overlap(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """In each epoch some rows come on two ranks, and as many never. No rank sees a row twice, and
    the ranks have equally many rows."""
    parts = [seen for ranks in rows.by_epoch(records).values() for seen in ranks]
    share = records.params.rows // len(records.ranks)
    even = all(len(set(seen)) == len(seen) == share for seen in parts)
    return even and epochs.units(faults) == {epochs.Unit.NEVER, epochs.Unit.TWICE}


oracle = epochs.Epochs(
    overlap,
    orders=(orders.unshuffled,),
    checks=(epochs.another_number, epochs.row_twice, epochs.other_lengths),
)


def run(ctx: api.Context) -> None:
    """Fit some epochs of a loader that shuffles."""
    import torch
    from torch.utils.data import DataLoader

    from scenarios.pytorch_lightning import _fitted_rows as fitted

    torch.manual_seed(ctx.seed + 7 + (ctx.rank if ctx.params.seeding == "each rank" else 0))
    data: Any = torch.arange(float(ctx.params.rows))
    fitted.fit(ctx, DataLoader(data, BATCH, shuffle=True))
