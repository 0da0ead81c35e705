"""Stop a stream with map() and go on from its state_dict: does each row come once?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

import datasets


def stream(mapped: bool) -> datasets.IterableDataset:
    """20 rows in two shards, with or without a map that changes nothing."""
    rows = datasets.Dataset.from_dict({"row": list(range(20))}).to_iterable_dataset(num_shards=2)
    return rows.map(lambda row: row) if mapped else rows


print("datasets", datasets.__version__)
for mapped in (False, True):
    stopped, resumed = stream(mapped), stream(mapped)
    rows = iter(stopped)
    before = [next(rows)["row"] for _ in range(4)]
    resumed.load_state_dict(stopped.state_dict())
    after = [row["row"] for row in resumed]
    print(f"{'with' if mapped else 'without'} map(): {before}, then {after}")
lost = sorted(set(range(20)) - {*before, *after})
print(f"WRONG: {len(lost)} rows never come" if lost else "right: each row comes once")
raise SystemExit(3 if lost else 0)
