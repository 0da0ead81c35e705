"""Is the gradient of ClipLoss(local_loss=True) on two ranks that of one process?

Needs torch and open_clip_torch. The exit code is 3 if they differ."""

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
    """The gradient on two ranks, and in one process with all rows."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29734", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, rows = torch.nn.Linear(6, 4, bias=False), torch.randn(16, 2, 6)
    alone, loss = gradient(model, ClipLoss(), rows), ClipLoss(True, rank=rank, world_size=2)
    on_ranks = gradient(DistributedDataParallel(model), loss, rows.chunk(2)[rank])
    torch.distributed.barrier()
    return on_ranks, alone


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    on_two, in_one = gradients(1)
    has_bug = bool((on_two - in_one).norm() > 1e-3 * in_one.norm())
    text = f"norm {on_two.norm():.4f}, cosine {torch.cosine_similarity(on_two, in_one, dim=0):.4f}"
    print("open_clip_torch", version("open_clip_torch"), "on 2 ranks, local_loss")
    print(f"{'WRONG' if has_bug else 'right'}: {text}; in one process {in_one.norm():.4f}")
    raise SystemExit(3 if has_bug else 0)
