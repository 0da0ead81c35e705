"""Quantize other rows on two ranks with VectorQuantize's defaults: do the ranks' codebooks agree?

Needs torch and vector-quantize-pytorch, and no GPU. The exit code is 1 if the bug is there.
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
    found = [torch.empty(4, 4) for _ in range(2)]
    torch.distributed.all_gather(found, quantizer.codebook.contiguous())
    torch.distributed.barrier()
    return found


if __name__ == "__main__":
    spawn(codebooks, join=False, daemon=True)  # rank 0
    first, second = codebooks(1)
    print("vector-quantize-pytorch", version("vector-quantize-pytorch"), "on 2 ranks")
    apart = float((first - second).norm() / first.norm())
    wrong = apart > 1e-3
    print(f"{'WRONG' if wrong else 'right'}: the codebooks are {apart:.3g} of their norm apart")
    raise SystemExit(wrong)
