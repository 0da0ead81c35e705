"""Read padded documents with GPTDataset: does each row train its own text?

Needs torch and megatron-core, from 0.7 on. The exit code is 3 if the bug is there."""

import tempfile
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

PAD, END, LENGTH, DOCUMENTS = 50, 49, 8, 12
folder = tempfile.mkdtemp()
builder = IndexedDatasetBuilder(f"{folder}/data.bin", dtype=np.int32)
for number in range(DOCUMENTS):
    text = torch.full((LENGTH,), 1 + number)
    text[LENGTH - number % 6 :] = PAD
    builder.add_item(text.int())
    builder.end_document()
builder.finalize(f"{folder}/data.idx")
tokenizer = SimpleNamespace(pad=PAD, eod=END, vocab_size=51, unique_identifiers={"name": "words"})
tokenizer.special_tokens_dict = {}
masks = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
place = {"blend": ([f"{folder}/data"], None), "split": "1,0,0", "path_to_cache": folder}
config = GPTDatasetConfig(
    random_seed=1, sequence_length=LENGTH, tokenizer=tokenizer, **masks, **place
)
documents = np.arange(DOCUMENTS, dtype=np.int32)
data = IndexedDataset(f"{folder}/data")
rows = list(GPTDataset(data, f"{folder}/data", documents, None, Split.train, config))
total, counted = (sum(int((row[k] != 0).sum()) for row in rows) for k in ("labels", "loss_mask"))
first = int((rows[0]["labels"] == 0).sum())
release = version("megatron-core")
print(f"megatron-core {release}: the first of {len(rows)} rows has {first} tokens of padding;")
print(f"{counted} of {total} tokens of text count in the loss")
print("WRONG: text is masked" if counted != total else "right: all text is trained")
raise SystemExit(3 if counted != total else 0)
