"""Quantize other rows on two ranks with VectorQuantize's defaults: do the ranks' codebooks agree?

Needs torch and vector-quantize-pytorch, and no GPU. The exit code is 3 if the bug is there.
"""

from importlib.metadata import version

import torch
from torch.multiprocessing.spawn import spawn
from vector_quantize_pytorch import VectorQuantize


def codebooks(rank: int) -> list[torch.Tensor]:
    """The codebooks of both ranks after a step."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29735", rank=rank, world_size=2)
    torch.manual_seed(0)
    quantizer = VectorQuantize(dim=4, codebook_size=4).train()
    quantizer(torch.randn(2, 1, 64, 4)[rank] + rank)
    books = [torch.empty(4, 4) for _ in range(2)]
    torch.distributed.all_gather(books, quantizer.codebook.contiguous())
    torch.distributed.barrier()
    return books


if __name__ == "__main__":
    spawn(codebooks, join=False, daemon=True)  # rank 0
    book_0, book_1 = codebooks(1)
    print("vector-quantize-pytorch", version("vector-quantize-pytorch"), "on 2 ranks")
    apart = float((book_0 - book_1).norm() / book_0.norm())
    has_bug = apart > 1e-3
    print(f"{'WRONG' if has_bug else 'right'}: the codebooks are {apart:.3g} of their norm apart")
    raise SystemExit(3 if has_bug else 0)
