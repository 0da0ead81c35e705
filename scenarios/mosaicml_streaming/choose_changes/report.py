"""Read half of a stream twice with shuffle=False: are they the same samples?

Needs torch and mosaicml-streaming, and no GPU. The exit code is 3 if the bug is there."""

import logging
import tempfile

import streaming

logging.getLogger("streaming").setLevel(logging.ERROR)
folder = tempfile.mkdtemp()
with streaming.MDSWriter(out=folder, columns={"row": "int"}) as writer:
    for row in range(24):
        writer.write({"row": row})
stream = streaming.Stream(local=folder, choose=12)
dataset = streaming.StreamingDataset(streams=[stream], shuffle=False, batch_size=1)
epochs = [[int(sample["row"]) for sample in dataset] for _ in range(2)]
print("mosaicml-streaming", streaming.__version__)
for number, rows in enumerate(epochs):
    print(f"epoch {number}: {rows}")
is_wrong = epochs[0] != epochs[1]
print("WRONG: other samples" if is_wrong else "right: the same samples in the same order")
raise SystemExit(3 if is_wrong else 0)
