"""Is the gradient of ClipLoss(local_loss=True) on two ranks that of one process?

Needs torch and open_clip_torch. The exit code is 1 if they differ."""

from importlib.metadata import version
from typing import Any

import torch
from open_clip.loss import ClipLoss
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel


def gradient(model: Any, loss: Any, rows: torch.Tensor) -> torch.Tensor:
    model.zero_grad()  # a linear map; each row has an image and a text
    images, texts = normalize(model(rows), dim=-1).unbind(1)
    loss(images, texts, torch.tensor(10.0)).backward()
    return next(model.parameters()).grad.flatten().clone()  # type: ignore[no-any-return]


def gradients(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """On two ranks, and in one process with all rows."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29734", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, rows = torch.nn.Linear(6, 4, bias=False), torch.randn(16, 2, 6)
    right, loss = gradient(model, ClipLoss(), rows), ClipLoss(True, rank=rank, world_size=2)
    found = gradient(DistributedDataParallel(model), loss, rows.chunk(2)[rank])
    torch.distributed.barrier()
    return found, right


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    found, right = gradients(1)
    wrong = bool((found - right).norm() > 1e-3 * right.norm())
    text = f"norm {found.norm():.4f}, cosine {torch.cosine_similarity(found, right, dim=0):.4f}"
    print("open_clip_torch", version("open_clip_torch"), "on 2 ranks, local_loss")
    print(f"{'WRONG' if wrong else 'right'}: {text}; in one process {right.norm():.4f}")
    raise SystemExit(wrong)
