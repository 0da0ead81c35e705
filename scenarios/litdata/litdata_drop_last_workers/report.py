"""Read 100 rows with litdata in batches of 8, drop_last=True: how many come, by number of workers?

Needs torch and litdata, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import litdata
from litdata.streaming import Cache


def rows_of(workers: int) -> int:
    """How many rows come in an epoch."""
    dataset = litdata.StreamingDataset(folder, shuffle=True, drop_last=True)
    loader = litdata.StreamingDataLoader(dataset, batch_size=8, num_workers=workers, drop_last=True)
    return sum(len(batch) for batch in loader)


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    cache = Cache(input_dir=folder, chunk_size=10)
    for row in range(100):
        cache[row] = row
    cache.done()
    cache.merge()

    print("litdata", litdata.__about__.__version__)
    came = {workers: rows_of(workers) for workers in (1, 2, 4, 8)}
    for workers, count in came.items():
        print(f"{workers} workers: {count} of 100 rows")
    has_bug = min(came.values()) < 96
    print(
        "WRONG: workers drop batches" if has_bug else "right: 96 rows fill batches, and they come"
    )
    raise SystemExit(3 if has_bug else 0)
