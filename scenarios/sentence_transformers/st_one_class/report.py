"""Make batches of 64 texts with 4 labels: do the batches have several labels?

Needs torch and sentence-transformers, and no GPU. The exit code is 3 if the bug is there."""

import sentence_transformers
import torch
from sentence_transformers.sampler import GroupByLabelBatchSampler


class Texts:
    """A dataset, as far as the sampler reads it: the label of each text."""

    column_names = ("text", "label")

    def __len__(self) -> int:
        return len(labels)

    def __getitem__(self, column: str) -> list[int]:
        return labels


labels = [text // 16 for text in range(64)]
sampler = GroupByLabelBatchSampler(
    Texts(),
    batch_size=8,
    drop_last=True,
    valid_label_columns=["label"],
    generator=torch.Generator(),
)
print("sentence-transformers", sentence_transformers.__version__)
single = 0
for batch in sampler:
    print(*(labels[text] for text in batch))
    single += len({labels[text] for text in batch}) == 1
print("WRONG: batches have one label" if single else "right: each batch has several labels")
raise SystemExit(3 if single else 0)
