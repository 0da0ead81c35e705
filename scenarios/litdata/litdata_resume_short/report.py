"""Resume a StreamingDataLoader of litdata, and read two more epochs: has each one all rows?

Needs torch and litdata, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import litdata
from litdata.streaming import Cache


def loader() -> litdata.StreamingDataLoader:
    """100 rows in batches of 4, read by two workers."""
    return litdata.StreamingDataLoader(
        litdata.StreamingDataset(folder), batch_size=4, num_workers=2
    )


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    cache = Cache(input_dir=folder, chunk_size=10)
    for row in range(100):
        cache[row] = row
    cache.done()
    cache.merge()

    print("litdata", litdata.__about__.__version__)
    stopped, resumed = loader(), loader()
    batches = iter(stopped)
    for _ in range(10):
        next(batches)
    resumed.load_state_dict(stopped.state_dict())
    lengths = [sum(len(batch) for batch in resumed) for _ in range(3)]
    print("rows of the resumed epoch and of the next two:", *lengths)
    has_bug = lengths[1:] != [100, 100]
    print(
        "WRONG: the next epochs lack rows"
        if has_bug
        else "right: the next epochs have all 100 rows"
    )
    raise SystemExit(3 if has_bug else 0)
