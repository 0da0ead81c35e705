"""Interleave datasets of 3, 4 and 3 rows, each row once: do all 10 rows come?

Needs datasets from 4.2 on, and no GPU. The exit code is 3 if the bug is there."""

import datasets
from datasets import Dataset

lengths = {0: 3, 10: 4, 20: 3}
parts = [Dataset.from_dict({"row": list(range(a, a + n))}) for a, n in lengths.items()]
strategy = "all_exhausted_without_replacement"
mixture = datasets.interleave_datasets(parts, stopping_strategy=strategy)
rows = list(mixture["row"])
print(f"datasets {datasets.__version__}: {rows}")
missing = 10 - len(rows)
print(f"WRONG: {missing} of 10 rows missing" if missing else "right: each row once")
raise SystemExit(3 if missing else 0)
