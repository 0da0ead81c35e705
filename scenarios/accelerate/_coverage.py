"""Did the ranks together see the complete dataset in each epoch, every sample once?

A record ``epoch`` has the samples that a rank saw, in order (``seen``), the ``order`` of all
samples from which the rank took its share, and the ``seed`` of its generator; its step is the
epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from harness.bugs import api
from scenarios.common import rows

UNIT = "of all samples seen by nobody"


_ROWS = rows.SEEN["seen"]


def plan(epochs: int) -> api.Plan:
    """The records that ``watch`` writes in so many epochs."""
    return {"epoch": api.Kind({"seen": _ROWS, "order": _ROWS, "seed": api.WHOLE}, api.each(epochs))}


def watch(ctx: api.Context, loader: Any, epochs: int) -> None:
    """Iterate over a prepared loader of integers, epoch by epoch, and record the samples.

    ``loader.batch_sampler`` shards another batch sampler, which draws from a ``sampler``.
    """
    import torch

    order = _noted(loader.batch_sampler.batch_sampler.sampler)
    for epoch in range(1, epochs + 1):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch - 1)
        seed = torch.initial_seed()
        samples = [int(sample) for batch in loader for sample in batch]
        ctx.record("epoch", epoch, seen=samples, order=list(order), seed=seed)


def _noted(sampler: Any) -> list[int]:
    """A list that always contains the newest order of a sampler; the sampler works as before."""
    kind, order = type(sampler), list[int]()

    def draw(self: Any) -> Iterator[int]:
        order.clear()
        for index in kind.__iter__(self):
            order.append(int(index))
            yield index

    sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": draw})
    return order


def incomplete(records: api.Records) -> api.Finding | None:
    """In some epoch the ranks together did not see the dataset, though they saw as many samples."""
    total = records.params.samples
    drawn = rows.by_epoch(records)
    lines = {
        epoch: f"epoch {epoch}: {rows.missed(ranks, total, 'samples')}"
        for epoch, ranks in drawn.items()
        if set(rows.together(ranks)) != set(range(total))
    }
    if not lines:
        return None
    samples = {epoch: rows.together(drawn[epoch]) for epoch in lines}
    return api.Finding(
        message="\n".join(lines.values()),
        step=min(samples),
        ranks=records.ranks,
        magnitude=max(1 - len(set(seen)) / total for seen in samples.values()),
        unit=UNIT,
        clock="epoch",
        documented=all(len(seen) == total for seen in samples.values()),
    )


def misdrawn(records: api.Records, batch: int) -> api.Finding | None:
    """A rank's order does not have every sample once, or the rank saw other samples than its share.

    The documented bug is that the ranks' orders differ, so anything else is not documented. Rank r
    of n sees every n-th batch of its order, from batch r on. An order may come again in the next
    epoch: accelerate 0.24.1 repeats it.
    """
    count = len(records.ranks)
    total = records.params.samples
    lines = [
        (one, line) for one in records.of("epoch") for line in _misdrawn(one, count, total, batch)
    ]
    if not lines:
        return None
    return api.Finding(
        "\n".join(line for _, line in lines),
        min(one["step"] for one, _ in lines),
        ranks=tuple(sorted({one["rank"] for one, _ in lines})),
        clock="epoch",
        documented=False,
    )


def _misdrawn(record: api.Record, ranks: int, total: int, batch: int) -> Iterator[str]:
    where, order = f"epoch {record['step']}, rank {record['rank']}:", record["order"]
    if sorted(order) != list(range(total)):
        yield f"{where} its order of {len(order)} does not have each of {total} samples once"
    batches = [order[at : at + batch] for at in range(0, len(order), batch)]
    share = [sample for batch in batches[record["rank"] :: ranks] for sample in batch]
    if record["seen"] != share:
        apart = sum(a != b for a, b in zip_longest(record["seen"], share))
        yield f"{where} {apart} of the {len(share)} samples are not those of its share"


def shuffled(records: api.Records) -> api.Exercise:
    """No rank saw an epoch in the order of the dataset."""
    parts = [seen for ranks in rows.by_epoch(records).values() for seen in ranks]
    sorted_ = sum(list(seen) == sorted(seen) for seen in parts)
    return api.Exercise.of(
        bool(parts) and not sorted_,
        f"{len(rows.by_epoch(records))} epochs on {len(records.ranks)} ranks were shuffled",
        f"{sorted_} of {len(parts)} epochs of a rank came in the order of the dataset",
    )


def states_apart(records: api.Records) -> api.Exercise:
    """The ranks' generators had different seeds."""
    seeds = sorted({record["seed"] for record in records.of("epoch")})
    return api.Exercise.of(
        len(seeds) >= len(records.ranks) > 1,
        f"the ranks had different seeds, {', '.join(map(str, seeds))}",
        f"all ranks were seeded with {', '.join(map(str, seeds)) or 'nothing'}",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that count samples, or look at one rank or one epoch, and whether they fired."""
    epochs, total = list(rows.by_epoch(records).values()), records.params.samples
    return {
        "the number of samples drawn is not the dataset's": any(
            sum(map(len, ranks)) != total for ranks in epochs
        ),
        "a rank sees a sample twice": any(len(set(s)) < len(s) for r in epochs for s in r),
        "an epoch repeats the order of another": any(
            one == other for n, one in enumerate(epochs) for other in epochs[n + 1 :]
        ),
    }


def _seen_by(records: api.Records) -> Iterator[tuple[int, int, str]]:
    """Which ranks saw each sample, in each epoch."""
    for number, ranks in rows.by_epoch(records).items():
        for sample in range(records.params.samples):
            viewers = [f"rank {rank}" for rank, one in enumerate(ranks) for s in one if s == sample]
            yield sample, number, " and ".join(viewers) or "nobody"


seen_by = api.grid(
    "Who saw which sample",
    "with the bug, two ranks see some samples, and nobody sees others",
    _seen_by,
    x="sample",
    y="epoch",
    value="seen by",
    wrong=("nobody",),
)
"""Which ranks saw which sample in each epoch."""
