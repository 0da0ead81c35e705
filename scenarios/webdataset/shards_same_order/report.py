"""Read a WebDataset with shardshuffle for several epochs: has each another order of shards?

Needs torch and webdataset, and no GPU. The exit code is 3 if the bug is there."""

import random
import tempfile

import webdataset

random.seed(0)
folder = tempfile.mkdtemp()
for shard in range(12):
    with webdataset.TarWriter(f"{folder}/{shard:02d}.tar") as file:
        file.write({"__key__": str(shard), "txt": str(shard)})

dataset = webdataset.WebDataset(folder + "/{00..11}.tar", shardshuffle=12)
print("webdataset", webdataset.__version__)
orders = []
for epoch in range(4):
    orders.append([int(sample["txt"]) for sample in dataset])
    print(f"epoch {epoch}: {orders[epoch]}")
different = len(set(map(tuple, orders)))
print(f"{different} different orders in 4 epochs")
print("WRONG: an order is repeated" if different < 4 else "right: each epoch has another order")
raise SystemExit(3 if different < 4 else 0)
