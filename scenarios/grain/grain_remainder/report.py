"""Read 11 rows with grain's DataLoader on 3 shards, drop_remainder=False: does each row come?

Needs grain, and no GPU. The exit code is 3 if the bug is there."""

import importlib.metadata

import grain.python as grain


def shard(index: int) -> list[int]:
    """The rows of one of three shards."""
    sampler = grain.IndexSampler(
        num_records=11,
        shard_options=grain.ShardOptions(shard_index=index, shard_count=3, drop_remainder=False),
        num_epochs=1,
        shuffle=False,
    )
    loader = grain.DataLoader(data_source=list(range(11)), sampler=sampler, worker_count=0)
    return [int(row) for row in loader]


print("grain", importlib.metadata.version("grain"))
shards = [shard(index) for index in range(3)]
print("rows of the shards:", *shards)
never = sorted(set(range(11)) - {row for one in shards for row in one})
print(f"WRONG: rows {never} never come" if never else "right: each row comes")
raise SystemExit(3 if never else 0)
