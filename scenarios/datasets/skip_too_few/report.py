"""Skip 1000 and 2500 rows of a stream: does it begin with the rows 1000 and 2500?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

import datasets

rows = datasets.Dataset.from_dict({"row": list(range(4000))})
stream = rows.to_iterable_dataset()  # it reads Arrow tables of 1000 rows
print("datasets", datasets.__version__)
has_bug = False
for count in (500, 1000, 2500):
    head = {row["row"] for row in stream.take(count)}
    tail = [row["row"] for row in stream.skip(count)]
    both = head & set(tail)
    print(
        f"skip({count}) begins with row {tail[0]}; take({count}) has {len(both)} of its rows, too"
    )
    has_bug |= bool(both)
print("WRONG: skip(n) has rows of take(n)" if has_bug else "right: skip(n) has no row of take(n)")
raise SystemExit(3 if has_bug else 0)
