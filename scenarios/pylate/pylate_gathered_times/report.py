"""Compare queries with the documents of two ranks: is the gradient that of one process?

Needs torch and pylate, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from pylate import __version__
from pylate.losses import Contrastive
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


class Encoder(torch.nn.Linear):  # gives each row one token
    skiplist, do_query_expansion = (), False

    def forward(self, features: Any) -> Any:
        return {"token_embeddings": super().forward(features["rows"])}


def norms(rank: int) -> tuple[float, float]:
    """The norm of the gradient of 8 rows in one process, and then that of 4 rows on each rank."""
    torch.manual_seed(0)
    encoder, rows = Encoder(6, 4), torch.randn(2, 8, 1, 6)
    ids = torch.ones(8, 1, dtype=torch.long)
    texts = [{"input_ids": ids, "attention_mask": ids, "rows": r} for r in rows]
    Contrastive(encoder)(texts).backward()  # type: ignore
    alone, encoder.weight.grad = float(encoder.weight.grad.norm()), None  # type: ignore
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29848", rank=rank, world_size=2)
    loss = Contrastive(DistributedDataParallel(encoder), gather_across_devices=True)  # type: ignore
    loss([{name: t.chunk(2)[rank] for name, t in text.items()} for text in texts]).backward()
    return alone, float(encoder.weight.grad.norm())  # type: ignore


if __name__ == "__main__":
    spawn(norms, join=False, daemon=True)  # rank 0
    alone, on_two = norms(1)
    print(f"pylate {__version__}: the norm is {on_two:.4f} on 2 ranks, {alone:.4f} on one")
    print("WRONG: it depends on their number" if on_two > 1.5 * alone else "right: the same")
    raise SystemExit(3 if on_two > 1.5 * alone else 0)
