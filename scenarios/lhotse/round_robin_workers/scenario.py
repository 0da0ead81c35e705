"""With k workers, lhotse's RoundRobinSampler gives k batches of one source in a row.

``RoundRobinSampler`` alternates between several sources, such as languages, tasks, or batches of
different sizes. In the way that lhotse's documentation names for large data, the sampler runs in
the workers of the DataLoader. Then as many batches come in a row from one source as there are
workers: AABB with two, AAAABBBB with four. Each source has its share in the long run, and no error
is raised, but neighbouring steps are not mixed, and the order depends on the number of workers.

Root cause: each worker has a copy of the sampler, and each copy starts with the first source. The
DataLoader takes a batch from each worker in turn. The fix starts a worker's copy with the source of
the worker's number, and goes on by the number of workers.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby, islice
from typing import Any

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """The source of each batch."""
    return {"batch": api.Kind({"source": api.COUNT}, api.each(at.params.batches))}


def run(ctx: api.Context) -> None:
    """Take batches, and record from which source each is."""
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import DynamicCutSampler, RoundRobinSampler
    from lhotse.dataset.iterable_dataset import IterableDatasetWrapper
    from torch.utils.data import DataLoader, Dataset

    p = ctx.params

    class Sources(Dataset[int]):
        """The source of a batch."""

        def __getitem__(self, cuts: Any) -> int:
            (source,) = {cut.channel for cut in cuts}
            return int(source)

    def sampler(source: int) -> Any:
        # Each source has as many batches as are taken, so none ends.
        cuts = [MonoCut(f"{source}-{n}", 0, 1, channel=source) for n in range(2 * p.batches)]
        # lhotse demands rank 0 of 1 from a sampler in a worker.
        return DynamicCutSampler(CutSet.from_cuts(cuts), max_cuts=2, rank=0, world_size=1)

    both = RoundRobinSampler(*map(sampler, range(p.sources)))
    wrapped = IterableDatasetWrapper(Sources(), both)
    loader = DataLoader(wrapped, batch_size=None, num_workers=p.workers)
    for step, source in enumerate(islice(loader, p.batches), 1):
        ctx.record("batch", step, source=source)


def order(records: api.Records) -> list[int]:
    """The sources of the batches."""
    return [batch["source"] for batch in records.of("batch", 0)]


def detect(records: api.Records) -> api.Finding | None:
    """As many batches in a row are of one source as there are workers."""
    p, came = records.params, order(records)
    expected = [n % p.sources for n in range(len(came))]
    if came == expected:
        return None
    rows = [len(list(batches)) for _, batches in groupby(came)]
    text = "".join(map(str, came[:16]))
    return api.Finding(
        f"up to {max(rows)} batches in a row are of one source: {text}",
        step=next(
            n for n, pair in enumerate(zip(came, expected, strict=True), 1) if len({*pair}) > 1
        ),
        ranks=records.ranks,
        magnitude=max(rows),
        unit="batches in a row of one source",
        clock="batch",
        documented=came == [n // max(p.workers, 1) % p.sources for n in range(len(came))],
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Each source has its share."""
    counts = Counter(order(records))
    return {"the sources have unequal numbers of batches": len({*counts.values()}) > 1}


picture = api.grid(
    "From which source each batch is",
    "with the bug several batches in a row are of one source",
    lambda records: [(batch["step"], "", batch["source"]) for batch in records.of("batch", 0)],
    x="batch",
    value="source",
)
