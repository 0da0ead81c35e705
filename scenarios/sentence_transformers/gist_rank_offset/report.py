"""GISTEmbedLoss on two ranks with gathered documents: does the last rank remove false negatives?

Needs torch and sentence-transformers, and no GPU. The exit code is 3 if the bug is there."""

import os
from typing import Any

import sentence_transformers
import torch
from sentence_transformers.losses import GISTEmbedLoss
from tokenizers import Tokenizer, models
from torch.multiprocessing.spawn import spawn
from transformers import PreTrainedTokenizerFast

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29841"}


class Encoder(torch.nn.Module):
    max_seq_length, tokenizer = 8, PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))

    def forward(self, rows: Any) -> Any:
        return {"sentence_embedding": rows}


def loss(rank: int) -> float:
    """Rank 0's document is nearer to rank 1's anchor than its own: a false negative."""
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    anchor, document = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.2 if rank else 0.1]])
    options: Any = {"gather_across_devices": True, "contrast_anchors": False}
    gist = GISTEmbedLoss(Encoder(), Encoder(), contrast_positives=False, **options)
    return float(gist([anchor, document], None))


if __name__ == "__main__":
    rank_0 = spawn(loss, join=False, daemon=True)
    version, value = sentence_transformers.__version__, loss(1)
    print(f"sentence-transformers {version}: the loss of rank 1 is {value}")
    print("WRONG: a false negative counts" if value > 0.1 else "right: its pair alone is left")
    raise SystemExit(3 if value > 0.1 else 0)
