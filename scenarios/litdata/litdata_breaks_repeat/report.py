"""Break off three epochs of a ParallelStreamingDataset: does each go on behind the last one?

Needs torch and litdata, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from importlib.metadata import version
from itertools import islice

import litdata
from litdata.streaming import Cache

folder = tempfile.mkdtemp()
cache = Cache(input_dir=folder, chunk_size=5)
for row in range(20):
    cache[row] = row
cache.done()
cache.merge()
dataset = litdata.StreamingDataset(folder)
cycle = litdata.ParallelStreamingDataset([dataset], length=999, resume=True)
loader = litdata.StreamingDataLoader(cycle, batch_size=1)
print("litdata", version("litdata"))
epochs = []
for epoch in range(3):
    epochs.append([int(batch[0]) for batch in islice(loader, 4)])
    print(f"epoch {epoch + 1}: {epochs[-1]}")
bug = epochs[2] == epochs[1]
print("WRONG: epoch 3 has the rows of epoch 2" if bug else "right: each epoch has other rows")
raise SystemExit(3 if bug else 0)
