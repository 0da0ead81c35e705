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
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows

BATCH = 2
"""Rows of a batch of a rank."""


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(24, least=12, multiple=12, about="of the dataset")
    parts: int = api.knob(
        3, least=2, most=3, about="of the dataset; the sampler gives one an epoch"
    )
    epochs: int = api.knob(2, least=1, about="passes over all parts")
    told: bool = api.knob(False, about="whether the module calls the sampler's set_epoch")


SCENARIO = api.Scenario(
    report=(
        "set_epoch of a custom sampler is not called under DDP",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/21454",
    ),
    fix="https://github.com/Lightning-AI/pytorch-lightning/pull/21456",
    symptom="DistributedSamplerWrapper does not forward set_epoch to the sampler that it wraps",
    trigger="a sampler of one's own that has set_epoch, on several ranks",
    remedy="call set_epoch of your sampler in on_train_epoch_start",
    pins={"pytorch-lightning": "2.6.0"},
    harm="loses data",
    visibility="silent",
    settings={"ranks": api.above(1), "code": api.by_code("the user's sampler has set_epoch")},
    files=("lightning_fabric/utilities/distributed.py",),
    releases="pytorch-lightning>=2",  # the first with its own lightning_fabric
    absent=(
        api.Absent(
            "pytorch-lightning>=1.5,<1.7",
            "DDP refuses a sampler of the user",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.6.5/pytorch_lightning/trainer/connectors/data_connector.py",
        ),
    ),
    present=(
        api.Present(
            "pytorch-lightning>=1.7,<2",
            "DistributedSamplerWrapper has no set_epoch of its own",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/lightning_lite/utilities/distributed.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("2.6.1"),
        "control": api.control("2.6.0 on one rank", ranks=1),
        "told": api.expect_clean(
            about="2.6.0, the module calls the sampler's set_epoch", params={"told": True}
        ),
    },
)


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


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks shared a sampler of the user's, for several epochs."""
    p, ranks = records.params, len(records.ranks)
    text = f"{p.epochs * p.parts} epochs on {ranks} rank(s), a part of the rows in each"
    return api.Exercise.of(ranks > 1, text)
