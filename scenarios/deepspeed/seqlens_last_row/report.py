"""Pack five rows into batches of variable size with DeepSpeed: is each row in a batch?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import (
    batch_by_seqlens,
)

print("deepspeed", deepspeed.__version__)
is_wrong = False
for order in ("dataloader", "seqlen"):
    lengths = [3, 9, 2, 5, 4]  # the last row is number 4, the longest number 1
    batches, *_ = batch_by_seqlens(lengths, max_tokens=100, sequence_picking_order=order)
    rows = sorted(int(row) for _, of_batch in batches for row in of_batch)
    print(f"in the order of the {order}: the rows {rows} of 5 are in batches")
    is_wrong |= rows != [0, 1, 2, 3, 4]
print("WRONG: one row is in no batch" if is_wrong else "right: each row is in a batch")
raise SystemExit(3 if is_wrong else 0)
