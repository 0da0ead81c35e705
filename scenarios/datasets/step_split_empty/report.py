"""Stream a tar file on two ranks: does each rank have half of its rows?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

import io
import tarfile
import tempfile

import datasets
from datasets.distributed import split_dataset_by_node

file = tempfile.mkdtemp() + "/data.tar"
with tarfile.open(file, "w") as tar:
    for number in range(8):
        entry = tarfile.TarInfo(f"{number}.txt")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(str(number).encode()))

stream = datasets.load_dataset("webdataset", data_files=file, split="train", streaming=True)
print("datasets", datasets.__version__)
lengths = []
for rank in (0, 1):
    rows = [row["txt"] for row in split_dataset_by_node(stream, rank, world_size=2)]
    print(f"rank {rank}: {' '.join(rows) or 'no rows'}")
    lengths.append(len(rows))
bug = 0 in lengths
print("WRONG: one rank has no rows" if bug else "right: each rank has rows")
raise SystemExit(3 if bug else 0)
