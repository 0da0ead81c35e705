"""Under DDP, Lightning never tells a user's own sampler that a new epoch has begun.

This affects users who train on several ranks with a sampler of their own that chooses a part of the
rows for each epoch, as curriculum and balanced samplers do. Its ``set_epoch`` is never called, so
the part of the first epoch comes in each epoch, and the other rows are never seen: here 16 of 24.
On one rank the sampler is told, so a small test does not show the bug. The rows of an epoch come in
another order each time, because Lightning shuffles what the sampler gives.

Root cause: under DDP, Lightning wraps the sampler in a ``DistributedSamplerWrapper``. At the start
of an epoch it calls ``set_epoch`` of the wrapper, which keeps the number for itself. The fix passes
it on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows

BATCH = 2
"""Rows of a batch of a rank."""


def first_part(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """Each pass over all parts has the rows of one part, the same one in each pass, as often as
    there are parts; the other rows never come."""
    p = records.params
    passes = [sorted(rows.together(ranks)) for ranks in rows.by_epoch(records).values()]
    part = sorted(set(passes[0]))
    repeated = sorted(part * p.parts)
    return len(part) == p.rows // p.parts and all(one == repeated for one in passes)


oracle = epochs.Epochs(first_part, checks=(epochs.another_number, epochs.other_lengths))


def run(ctx: api.Context) -> None:
    """Fit some epochs, with a sampler that gives a part of the rows in each."""
    import torch
    from torch.utils.data import DataLoader, Sampler

    from scenarios.pytorch_lightning import _fitted_rows as fitted

    p = ctx.params

    class Part(Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return int(p.rows // p.parts)

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.epoch % p.parts, p.rows, p.parts))

    torch.manual_seed(ctx.seed)
    data: Any = torch.arange(float(p.rows))
    sampler = Part()
    loader = DataLoader(data, BATCH, sampler=sampler)
    fitted.fit(ctx, loader, p.parts, sampler.set_epoch if p.told else lambda epoch: None)
